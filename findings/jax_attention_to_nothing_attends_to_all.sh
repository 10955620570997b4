#!/usr/bin/env bash
# JAX: a mask may leave a query nothing to attend to, such as a condition without text in cross-attention, a row of
# padding, or a block with no earlier one. PyTorch gives zeros there. jax.nn.dot_product_attention gives the mean of all
# values, those that the mask forbids: each has the same lowest score. An empty condition is then the mean of its
# padding, and depends on how long that is, and a forbidden position that holds another text shows in the output. One
# position allowed, and none of it happens. No NaN points to it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import jax
import numpy as np
import torch

draw = np.random.default_rng(0)
query, key, value = (draw.normal(size=(1, length, 1, 8)).astype(np.float32) for length in (1, 6, 6))


def by_jax(mask):
    return np.asarray(jax.nn.dot_product_attention(query, key, value, mask=mask[None, None, None]))[0, 0, 0]


def by_torch(mask):
    tensors = [torch.tensor(array).transpose(1, 2) for array in (query, key, value)]
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(*tensors, attn_mask=torch.tensor(mask)[None, None, None])[0, 0, 0].numpy()


print("jax", jax.__version__, "torch", torch.__version__)
print("guess: with nothing to attend to, zeros or NaN, in both")
nothing, one = np.zeros(6, bool), np.arange(6) == 2
seen = {name: attend(nothing) for name, attend in (("jax", by_jax), ("torch", by_torch))}
for name, found in seen.items():
    print(f"seen: {name}: {found.round(3).tolist()}")
mean = value[0, :, 0].mean(0)
print(f"seen: the mean of all values: {mean.round(3).tolist()}")
same = np.allclose(by_jax(one), by_torch(one), atol=1e-6)
print(f"seen: with one position allowed both agree: {same}")
sys.exit(not (same and np.allclose(seen["jax"], mean, atol=1e-5) and not seen["torch"].any()))
PY
