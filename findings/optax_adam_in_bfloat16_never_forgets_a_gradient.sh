#!/usr/bin/env bash
# optax: Adam divides by the root of a mean of squared gradients, of which each step forgets a thousandth. With
# parameters in bfloat16 optax.adam keeps that mean in bfloat16, where 0.999 of a number rounds to the number: it does
# not fall any more. After large gradients at the start, every later step is too small, for good; on the way up it stops
# at a half of what it should be. mu_dtype=float32, which reads like the cure, is for the other mean. torch.optim.Adam
# does the same with parameters in bfloat16. The first hundred steps, as a test may compare, agree.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 optax==0.2.8
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PY'
import sys

import jax
import jax.numpy as jnp
import optax


def run(dtype, **arguments):
    optimizer = optax.adam(1.0, **arguments)
    state = optimizer.init(jnp.zeros(1, dtype))
    update = jax.jit(optimizer.update)
    means = {}
    for at in range(1, 4001):
        change, state = update(jnp.full(1, 1.0 if at <= 1000 else 0.01, dtype), state)
        if at in (100, 1000, 2000, 4000):
            means[at] = round(float(state[0].nu[0]), 4)
    return means, -float(change[0])


cases = {"float32": (jnp.float32, {}), "bfloat16": (jnp.bfloat16, {})}
cases["bfloat16, mu_dtype=float32"] = (jnp.bfloat16, {"mu_dtype": jnp.float32})
seen = {name: run(dtype, **arguments) for name, (dtype, arguments) in cases.items()}
print("optax", optax.__version__, "jax", jax.__version__)
print("guess: gradients of 1 are forgotten after some thousand steps with gradients of 0.01, up to rounding")
for name, (means, change) in seen.items():
    print(f"seen: {name}: mean of the squares after steps {means}, the last step is {change:.4f}")
(right, change), *others = seen.values()
same_start = all(abs(means[100] - right[100]) < 0.01 for means, _ in others)
stuck = all(means[1000] == means[2000] == means[4000] == 0.5 for means, _ in others)
sys.exit(not (same_start and stuck and right[4000] < 0.05 and change > 3 * max(other for _, other in others)))
PY
