#!/usr/bin/env bash
# CTranslate2: set_random_seed makes sampling repeatable, and one calls it before each run, as in PyTorch and NumPy. It
# is read only when a loaded model draws for the first time: the second call, with the same seed or another, changes
# nothing, and samples go on where they were. A test that sets the seed twice and compares fails, and an evaluation that
# sets it per question depends on the questions before. A model that is loaded anew after the call starts from the seed.
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
decoder.embeddings.weight, decoder.projection.weight = normal(TOKENS, WIDTH), normal(TOKENS, WIDTH) * 0.5
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
def sample(seed, model):
    ctranslate2.set_random_seed(seed)
    options = {"sampling_topk": 0, "max_length": 16, "include_prompt_in_result": False}
    return model.generate_batch([["t5", "t6"]], **options)[0].sequences_ids[0]


loaded = [ctranslate2.Generator(folder) for _ in range(3)]
first = sample(1, generator), sample(1, generator)
kept, anew = sample(1, loaded[0]), sample(1, loaded[1])
following = sample(1, loaded[1])
sample(1, loaded[2])
other = sample(7, loaded[2])
print("ctranslate2", ctranslate2.__version__)
print("guess: the same seed before each call gives the same tokens, and another seed others")
print("seed 1, then seed 1 again:        ", *first, sep="\n  ")
print("seed 1, then seed 7, model anew:  ", kept, other, sep="\n  ")
again = first[0] == kept == anew and first[1] == following == other
sys.exit(not (again and first[0] != first[1]))
PY
