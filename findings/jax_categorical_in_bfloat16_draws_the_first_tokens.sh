#!/usr/bin/env bash
# JAX: jax.random.categorical samples from logits by adding Gumbel noise, and draws the noise in the type of the logits.
# A model in bfloat16 gives such logits: of 1,000 tokens with equal logits half of all draws are then among the first
# hundred, and those of the last hundred hardly ever drawn, since the largest noise is shared by many and argmax takes
# the first of them. float16 is off by a half at the ends. No warning is given. mode="high" draws right at the same
# type, and so does a cast of the logits to float32.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PY'
import sys

import jax
import jax.numpy as jnp
import numpy as np


def shares(dtype, **options):
    """The parts of all draws that are among the first and the last hundred of 1,000 equally likely tokens."""
    drawn = jax.random.categorical(jax.random.key(0), jnp.zeros(1000, dtype), shape=(20000,), **options)
    counts = np.bincount(np.asarray(drawn) // 100, minlength=10) / 20000
    return round(float(counts[0]), 3), round(float(counts[-1]), 3)


print("jax", jax.__version__)
print("guess: about 0.1 of all draws are among the first hundred tokens, and 0.1 among the last, in every type")
seen = {
    "float32": shares(jnp.float32),
    "float16": shares(jnp.float16),
    "bfloat16": shares(jnp.bfloat16),
    'bfloat16, mode="high"': shares(jnp.bfloat16, mode="high"),
}
for kind, (first, last) in seen.items():
    print(f"seen: {kind}: {first} and {last}")
fair = [abs(first - 0.1) < 0.02 and abs(last - 0.1) < 0.02 for first, last in seen.values()]
first, last = seen["bfloat16"]
sys.exit(not (fair == [True, False, False, True] and first > 0.4 and last < 0.01))
PY
