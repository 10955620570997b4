#!/usr/bin/env bash
# CTranslate2: include_prompt_in_result says whether a result begins with its prompt, and is True if one does not set
# it. It changes the answer too: max_length is then that of prompt and answer together, so that a prompt as long as it
# has an answer of one token, and a longer one is cut. The score, a mean of log-probabilities, is divided by the
# prompt's length as well: a long prompt makes every answer likely. Comparing scores of prompts, or turning the flag off
# to cut the prompt away, changes what is measured. return_alternatives counts the prompt in either case.
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
prompt = ["t5", "t6", "t7", "t8", "t5", "t6"]


def answer(tokens=prompt, **options):
    result = generator.generate_batch([tokens], **{"max_length": 8, "return_scores": True, **options})[0]
    return result.sequences_ids[0], result.scores[0]


hidden, score = answer(include_prompt_in_result=False)
shown, other = answer()
few, _ = answer(max_length=3)
(one, of_one), (padded, of_padded) = answer(max_length=1, include_prompt_in_result=False), answer(max_length=6)
options = {"return_alternatives": True, "num_hypotheses": 2, "include_prompt_in_result": False, "max_length": 8}
alternatives = generator.generate_batch([prompt], **options)[0].sequences_ids
print("ctranslate2", ctranslate2.__version__)
print("guess: the flag adds the prompt to a result; with max_length=8 the answer has 8 tokens in both cases")
print("without the prompt:", len(hidden), "new tokens; with it:", len(shown) - len(prompt))
print("max_length=3, with it:", few)
print(f"score of the first new token: {of_one:.4f} without the prompt, {of_padded:.4f} with it")
print("return_alternatives without the prompt:", [len(tokens) for tokens in alternatives], "new tokens")
start, written = [5, 6, 7, 8, 5, 6], len(shown) - len(prompt)
short = len(hidden) == 8 and written < 4 and shown == start + hidden[:written] and few == start[: len(few)]
diluted = padded[:7] == [*start, *one] and abs(of_padded * 6 - of_one) < 1e-3
sys.exit(not (short and len(few) < 6 and diluted and all(len(tokens) < 4 for tokens in alternatives)))
PY
