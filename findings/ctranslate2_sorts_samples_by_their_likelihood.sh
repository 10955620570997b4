#!/usr/bin/env bash
# CTranslate2: num_hypotheses with sampling draws several texts of a prompt, and returns them sorted by their
# likelihood, as the results of a beam search are. The first one is not a sample, but the likeliest of all: one that
# takes the first of eight as the model's answer, or the first k of n for pass@k, measures another and sharper
# distribution, and the more so the more are drawn. Scores are sorted whether they are returned or not. In other
# libraries the texts stand in the order in which they were drawn.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check ctranslate2==4.8.5 numpy==2.4.6 setuptools==84.2.1
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerDecoderModelSpec

TOKENS, WIDTH, folder = 50, 32, sys.argv[1]
random = np.random.default_rng(3)


def normal(*shape):
    return random.normal(0, 1, shape).astype(np.float32)


spec = TransformerDecoderModelSpec.from_config(2, 4, pre_norm=True, rotary_dim=0, rotary_interleave=False)
decoder = spec.decoder
decoder.embeddings.weight, decoder.projection.weight = normal(TOKENS, WIDTH), normal(TOKENS, WIDTH)
decoder.scale_embeddings = False
norms, linears = [decoder.layer_norm], []
for layer in decoder.layer:
    norms += [layer.self_attention.layer_norm, layer.ffn.layer_norm]
    linears += [(layer.self_attention.linear[0], 3, 1), (layer.self_attention.linear[1], 1, 1)]
    linears += [(layer.ffn.linear_0, 2, 1), (layer.ffn.linear_1, 1, 2)]
for norm in norms:
    norm.gamma, norm.beta = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
for linear, outputs, inputs in linears:
    linear.weight, linear.bias = normal(outputs * WIDTH, inputs * WIDTH), np.zeros(outputs * WIDTH, np.float32)
spec.register_vocabulary([f"t{token}" for token in range(TOKENS)])
spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = "t0", "t1", "t2"
spec.validate()
spec.save(folder)
generator = ctranslate2.Generator(folder)
prompt, DRAWS = ["t5", "t6"], 300
options = {"sampling_topk": 0, "sampling_temperature": 4.0, "max_length": 1, "include_prompt_in_result": False}


def share(best, number, place):
    """How often the text at a place of several is the likeliest token."""
    batches = (generator.generate_batch([prompt], num_hypotheses=number, **options)[0] for _ in range(DRAWS))
    return sum(result.sequences_ids[place] == [best] for result in batches) / DRAWS


greedy = generator.generate_batch([prompt], max_length=1, include_prompt_in_result=False)[0].sequences_ids[0][0]
scored = [generator.generate_batch([prompt], num_hypotheses=8, return_scores=True, **options)[0] for _ in range(50)]
falling = sum(result.scores == sorted(result.scores, reverse=True) for result in scored)
alone, first, last = share(greedy, 1, 0), share(greedy, 8, 0), share(greedy, 8, 7)
print("ctranslate2", ctranslate2.__version__)
print("guess: the likeliest token is as frequent at each place of eight samples as in a single one")
print(f"a single sample: {alone:.2f}; of eight, the first: {first:.2f}, the last: {last:.2f}")
print(f"scores fall from the first to the last in {falling} of 50 calls")
sys.exit(not (falling == 50 and 0.1 < alone < 0.8 and first > alone + 0.15 and last < alone - 0.05))
PY
