#!/usr/bin/env bash
# CTranslate2: generate_batch with include_prompt_in_result=False returns answers without their prompts. In a batch of
# prompts of different lengths that holds for the shortest one. What the others have beyond its length is taken for the
# answer: it is returned, counts against max_length and min_length, and is part of the score, as if the model had been
# sure of it. Answers begin with words of the question and are cut short, or are nothing else, and nothing is said.
# A batch of one, and one of equal lengths, is right, and so is max_batch_size=1.
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
short, long = ["t9"], ["t5", "t6", "t7", "t8", "t5", "t6"]


def answers(*prompts, **options):
    options = {"include_prompt_in_result": False, "max_length": 8, "return_scores": True, **options}
    return [(result.sequences_ids[0], result.scores[0]) for result in generator.generate_batch(prompts, **options)]


(alone, score), (first, _) = answers(long)[0], answers(short)[0]
(brief, _), (joined, other) = answers(short, long)
separate = answers(short, long, max_batch_size=1)[1][0]
end = f"t{alone[0]}"
least, none = (len(answers(*batch, min_length=5, end_token=end)[-1][0]) for batch in ([long], [short, long]))
written = answers(short, long, min_length=5, end_token=end)[1][0]
print("ctranslate2", ctranslate2.__version__)
print("guess: an answer is that of its prompt alone, and does not hold the prompt")
print("t5 t6 t7 t8 t5 t6 alone:  ", alone, f"score {score:.3f}")
print("beside a prompt of one:   ", joined, f"score {other:.3f}")
print("with max_batch_size=1:    ", separate)
print("at least 5 tokens, alone:", least, "written; beside the other:", written)
wrong = joined == [6, 7, 8, 5, 6, *alone[:3]] and written == [6, 7, 8, 5, 6] and other > score + 0.1
sys.exit(not (wrong and separate == alone and brief == first and least >= 5))
PY
