#!/usr/bin/env bash
# JAX: random.choice takes the probabilities of what it draws from, as NumPy's does, which refuses a NaN, a negative
# number, a sum of 0, and more draws without replacement than there are probabilities above 0. JAX draws in each case:
# with a NaN always that place, with a sum of 0 always the first, with a negative number others than the rest says, and
# without replacement what has probability 0, once the others are used up. Tokens that a filter removed, or rows that
# were weighted by 0, come back. There is no error, and no way to see it in the result.
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

cases = {
    "a NaN": ([0.5, np.nan, 0.5], 1000, True),
    "a sum of 0": ([0.0, 0.0, 0.0], 1000, True),
    "a negative number": ([0.5, -0.5, 1.0], 1000, True),
    "3 of 4 without replacement, 2 above 0": ([0.5, 0.5, 0.0, 0.0], 3, False),
}
print("jax", jax.__version__, "numpy", np.__version__)
print("guess: each of these is refused, as NumPy does")
seen, refused = [], []
for name, (weights, count, replace) in cases.items():
    drawn = jax.random.choice(
        jax.random.key(0), len(weights), (count,), replace=replace, p=jnp.array(weights, jnp.float32)
    )
    seen.append(np.bincount(np.asarray(drawn), minlength=len(weights)).tolist())
    try:
        np.random.default_rng(0).choice(len(weights), count, replace=replace, p=weights)
    except ValueError as error:
        refused.append(str(error))
    print(f"seen: {name}: JAX draws {seen[-1]} times, NumPy says: {refused[-1]}")
without = seen[3]
sys.exit(
    not (
        seen[:2] == [[0, 1000, 0], [1000, 0, 0]]
        and seen[2][0] == 0
        and sum(without[:2]) == 2
        and sum(without[2:]) == 1
        and len(refused) == 4
    )
)
PY
