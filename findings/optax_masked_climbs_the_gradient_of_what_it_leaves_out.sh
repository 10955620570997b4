#!/usr/bin/env bash
# optax: masked(optimizer, mask) applies an optimizer to the parameters whose mask is True, and reads like the way to
# freeze the rest. What is left out is passed on as it came: the update of a frozen parameter is its gradient, neither
# times the learning rate nor with a minus, and apply_updates adds it. The frozen part climbs the loss with a rate of 1,
# the trained one descends with its small one. Nothing is said. The mask of adamw, which is for the weight decay alone,
# and multi_transform with set_to_zero do what they say.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 optax==0.2.8
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PY'
import sys
import warnings

import jax
import jax.numpy as jnp
import optax

weights = {"body": jnp.ones(1), "head": jnp.ones(1)}
trained = {"body": False, "head": True}
frozen = {"body": "frozen", "head": "trained"}


def loss(values):
    return 0.25 * (values["body"] + values["head"])[0] ** 2


def step(optimizer):
    updates, _ = optimizer.update(jax.grad(loss)(weights), optimizer.init(weights), weights)
    after = optax.apply_updates(weights, updates)
    return {name: round(float(value[0]), 4) for name, value in after.items()}


rate = optax.sgd(1e-3)
print("optax", optax.__version__, "jax", jax.__version__)
print("guess: after a step the body, whose mask is False, is still 1")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    seen = {
        "masked": step(optax.masked(rate, trained)),
        "multi_transform": step(optax.multi_transform({"trained": rate, "frozen": optax.set_to_zero()}, frozen)),
    }
for name, after in seen.items():
    print(f"seen: {name}: {after}, the gradient is {jax.grad(loss)(weights)['body'][0]}")
print("seen: warnings:", [str(one.message) for one in said])
right = {"body": 1.0, "head": 0.999}
sys.exit(not (seen == {"masked": {**right, "body": 2.0}, "multi_transform": right}) or bool(said))
PY
