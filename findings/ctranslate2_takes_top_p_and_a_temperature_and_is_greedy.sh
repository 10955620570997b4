#!/usr/bin/env bash
# CTranslate2: sampling_temperature and sampling_topp ask for samples, as temperature and top_p do in every API. As long
# as sampling_topk is not set they do nothing: it is 1, so that one token is left before either is looked at, and every
# answer is the greedy one, at a temperature of 50 too, and the same for all seeds. No error or warning says so;
# sampling_topk=0 turns the samples on. Only several hypotheses of one call are refused, with words about a beam, which
# nobody asked for.
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
prompt = ["t5", "t6"]


def answers(**options):
    """The answers of five calls."""
    options = {"max_length": 12, "include_prompt_in_result": False, **options}
    return [tuple(generator.generate_batch([prompt], **options)[0].sequences_ids[0]) for _ in range(5)]


def refused(**options):
    try:
        generator.generate_batch([prompt], num_hypotheses=5, **options)
    except ValueError as error:
        return str(error)
    return None


greedy = set(answers())
cases = {
    "temperature 50": {"sampling_temperature": 50.0}, "top_p 0.95": {"sampling_topp": 0.95},
    "both": {"sampling_temperature": 50.0, "sampling_topp": 0.95},
}  # fmt: skip
seen = {name: set(answers(**options)) for name, options in cases.items()}
drawn = {name: set(answers(sampling_topk=0, **options)) for name, options in cases.items()}
said = refused(sampling_temperature=50.0)
print("ctranslate2", ctranslate2.__version__)
print("guess: five calls at a temperature of 50, or with top_p 0.95, give different texts")
for name in cases:
    print(f"{name}: {len(seen[name])} different, greedy: {seen[name] == greedy};", end=" ")
    print(f"with sampling_topk=0: {len(drawn[name])} different")
print("num_hypotheses=5 at a temperature of 50:", said)
one = len(greedy) == 1 and all(found == greedy for found in seen.values()) and "beam_size" in (said or "")
sys.exit(not (one and all(len(found) > 2 for found in drawn.values())))
PY
