#!/usr/bin/env bash
# Keras and Flax: a mask of attention is boolean, or has floating numbers that are added to the scores: 0 where a query
# may attend, and minus infinity where not. PyTorch's scaled_dot_product_attention takes both. In MultiHeadAttention of
# keras.layers and flax.nnx a floating mask is read as truth values: 0 forbids, and minus infinity, which is not 0,
# allows. Each query attends to just what it must not see, the future or the padding, with outputs of the right shape.
# There is no error or warning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
"$folder/venv/bin/pip" install -q --disable-pip-version-check flax==0.12.8 keras==3.15.1
KERAS_BACKEND=jax JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PY'
import sys

import flax
import jax
import keras
import numpy as np
from flax import nnx

values = np.random.default_rng(0).normal(size=(1, 4, 16)).astype(np.float32)
allowed = np.tril(np.ones((4, 4), bool))
allowed[:, 0], allowed[3, 2] = True, False
additive = np.where(allowed, 0, -np.inf).astype(np.float32)
of_keras = keras.layers.MultiHeadAttention(2, 8)
of_flax = nnx.MultiHeadAttention(2, 16, rngs=nnx.Rngs(0), decode=False)


def outputs(mask):
    return (
        np.asarray(of_keras(values, values, attention_mask=mask[None])),
        np.asarray(of_flax(jax.numpy.asarray(values), mask=jax.numpy.asarray(mask)[None, None])),
    )


boolean, reverse, read = outputs(allowed), outputs(~allowed), outputs(additive)
print("keras", keras.__version__, "flax", flax.__version__, "jax", jax.__version__)
print("guess: 0 and minus infinity allow and forbid, as True and False do, or are refused")
seen = []
for name, right, wrong, one in zip(("keras", "flax"), boolean, reverse, read):
    seen.append([np.allclose(one, right, atol=1e-5), np.allclose(one, wrong, atol=1e-5)])
    print(f"seen: {name}: as the boolean mask: {seen[-1][0]}, as its reverse: {seen[-1][1]}")
sys.exit(seen != [[False, True], [False, True]])
PY
