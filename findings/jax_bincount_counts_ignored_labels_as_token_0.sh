#!/usr/bin/env bash
# JAX: bincount counts how often each token occurs, for penalties, class weights or the balance of experts. NumPy's and
# PyTorch's refuse a negative number, and make the result longer for one beyond the end. JAX's counts every negative
# number as token 0, and leaves out what is beyond: the label -100 of prompts and padding, or -1, makes token 0 the most
# frequent of all, with its penalty and its weight, and the counts add up to another number than there are tokens. No
# error or warning says so. segment_sum and one_hot of the same labels leave both out.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PY'
import sys

import jax
import jax.numpy as jnp
import numpy

labels = numpy.array([-100, -100, -1, 1, 2, 2, 9])
try:
    of_numpy = numpy.bincount(labels, minlength=4).tolist()
except ValueError:
    of_numpy = "an error"
seen = {
    "numpy.bincount": of_numpy,
    "jnp.bincount": jnp.bincount(labels, length=4).tolist(),
    "segment_sum": jax.ops.segment_sum(jnp.ones(len(labels), int), labels, num_segments=4).tolist(),
    "one_hot": jax.nn.one_hot(labels, 4, dtype=int).sum(0).tolist(),
}
print("jax", jax.__version__, "numpy", numpy.__version__)
print("guess: labels of no token are an error, or counted nowhere: [0, 1, 2, 0]")
for name, counts in seen.items():
    print(f"{name}: {counts}")
sys.exit([*seen.values()] != ["an error", [3, 1, 2, 0], [0, 1, 2, 0], [0, 1, 2, 0]])
PY
