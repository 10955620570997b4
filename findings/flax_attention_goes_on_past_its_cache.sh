#!/usr/bin/env bash
# Flax: attention with decode=True keeps keys and values in a cache of a fixed length. One token more than it holds is
# no error: the new key and value are written over the last ones, and the token attends to a text with a hole in it.
# Each further token does the same, so that the text before them is lost, and outputs are of the right shape and wrong.
# The length is set by the example with which the cache is made, in linen and in nnx alike. Shorter texts are right, so
# that a test with the length of the example passes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check flax==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PY'
import sys

import flax
import jax
import jax.numpy as jnp
from flax import linen, nnx

x = jax.random.normal(jax.random.key(0), (1, 7, 8))
mask = linen.make_causal_mask(jnp.ones((1, 7)))


def by_linen():
    """Outputs of one token after the other, with a cache of five, and those of a forward over all."""
    module = linen.MultiHeadDotProductAttention(num_heads=2, qkv_features=8, decode=True)
    variables = module.init(jax.random.key(1), x[:, :5], x[:, :5])
    weights, cache, outputs = variables["params"], variables["cache"], []
    for place in range(7):
        token = x[:, place : place + 1]
        output, changed = module.apply({"params": weights, "cache": cache}, token, token, mutable=["cache"])
        cache = changed["cache"]
        outputs.append(output)
    return outputs, module.clone(decode=False).apply({"params": weights}, x, x, mask=mask)


def by_nnx():
    modules = [
        nnx.MultiHeadAttention(num_heads=2, in_features=8, qkv_features=8, decode=decode, rngs=nnx.Rngs(0))
        for decode in (True, False)
    ]
    modules[0].init_cache((1, 5, 8))
    return [modules[0](x[:, place : place + 1]) for place in range(7)], modules[1](x, mask=mask)


print("flax", flax.__version__, "jax", jax.__version__)
print("guess: five tokens are right, and the sixth raises")
seen = {}
for decode in (by_linen, by_nnx):
    outputs, expected = decode()
    seen[decode.__name__] = [
        bool(jnp.allclose(output[:, 0], expected[:, place], atol=1e-5)) for place, output in enumerate(outputs)
    ]
    print(f"seen: {decode.__name__}: tokens that are right:", seen[decode.__name__])
sys.exit(list(seen.values()) != [[True] * 5 + [False] * 2] * 2)
PY
