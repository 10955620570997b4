#!/usr/bin/env bash
# Flax: a norm takes the mean off and divides by what is left, so that adding a constant to its inputs changes nothing.
# LayerNorm, GroupNorm and BatchNorm of flax.nnx and flax.linen compute the variance as the mean of the squares less the
# square of the mean, in float32: around a mean of 100 the first errors show, around 1,000 outputs are off by a quarter,
# around 10,000 the variance comes out as zero or below and outputs are thousands instead of one. PyTorch's norms are
# right for the same inputs, so that a ported model differs where activations are large. use_fast_variance=False, which
# is not the default, computes it in two steps. Nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 flax==0.12.8
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PY'
import sys

import flax
import jax
import numpy as np
from flax import linen, nnx

noise = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
rngs = nnx.Rngs(0)
norms = {
    "nnx.LayerNorm": nnx.LayerNorm(64, rngs=rngs),
    "nnx.GroupNorm of one group": nnx.GroupNorm(64, num_groups=1, rngs=rngs),
    "nnx.BatchNorm": nnx.BatchNorm(64, epsilon=1e-6, rngs=rngs),
    "linen.LayerNorm": lambda values: linen.LayerNorm().init_with_output(jax.random.key(0), values)[0],
    "nnx.LayerNorm, use_fast_variance=False": nnx.LayerNorm(64, use_fast_variance=False, rngs=rngs),
}
print("flax", flax.__version__, "jax", jax.__version__)
print("guess: around any mean outputs are those around 0, up to a rounding of the inputs")
seen = {}
for name, norm in norms.items():
    errors = []
    for mean in (0, 100, 1000, 10_000):
        values = noise + np.float32(mean)
        exact, axis = values.astype(np.float64), 0 if "Batch" in name else 1
        right = (exact - exact.mean(axis, keepdims=True)) / np.sqrt(exact.var(axis, keepdims=True) + 1e-6)
        errors.append(float(np.abs(np.asarray(norm(values)) - right).max()))
    seen[name] = errors
    print(f"seen: {name}: largest errors around 0, 100, 1000 and 10000:", *(f"{error:.2g}" for error in errors))
*fast, slow = seen.values()
sys.exit(not (all(one[0] < 1e-5 and one[2] > 0.05 and one[3] > 100 for one in fast) and max(slow) < 0.01))
PY
