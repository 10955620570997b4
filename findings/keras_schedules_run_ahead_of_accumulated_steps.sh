#!/usr/bin/env bash
# Keras: gradient_accumulation_steps=4 makes one update of four batches, and optimizer.iterations counts updates, as its
# name says. A schedule of the learning rate counts batches all the same: it is over after a quarter of the updates that
# it was written for, and a warmup of 100 updates takes 25. The same schedule in transformers or with optax.MultiSteps
# goes by updates. Turning accumulation on to save memory thus changes the recipe, and nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
"$folder/venv/bin/pip" install -q --disable-pip-version-check optax==0.2.8 keras==3.15.1
KERAS_BACKEND=jax JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PY'
import sys

import jax
import keras
import numpy as np
import optax


def of_keras(accumulated):
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, 4, end_learning_rate=0.0)
    optimizer = keras.optimizers.SGD(schedule, gradient_accumulation_steps=accumulated if accumulated > 1 else None)
    weight = keras.Variable(np.zeros(1, np.float32))
    weights = []
    for _ in range(4 * accumulated):
        optimizer.apply([np.ones(1, np.float32)], [weight])
        weights.append(float(weight.numpy()[0]))
    return np.diff([0.0, *weights[accumulated - 1 :: accumulated]]), int(optimizer.iterations)


def of_optax(accumulated):
    optimizer = optax.MultiSteps(optax.sgd(optax.linear_schedule(1.0, 0.0, 4)), accumulated)
    weight = jax.numpy.zeros(1)
    state = optimizer.init(weight)
    weights = []
    for _ in range(4 * accumulated):
        updates, state = optimizer.update(jax.numpy.ones(1), state, weight)
        weight = optax.apply_updates(weight, updates)
        weights.append(float(weight[0]))
    return np.diff([0.0, *weights[accumulated - 1 :: accumulated]])


(plain, _), (steps, iterations) = of_keras(1), of_keras(4)
print("keras", keras.__version__, "optax", optax.__version__)
print("guess: a rate that falls from 1 to 0 in 4 updates does so, however many batches an update takes")
print("seen: keras, a batch for an update:", plain.round(4).tolist())
print("seen: keras, 4 batches for an update:", steps.round(4).tolist(), "with", iterations, "iterations counted")
print("seen: optax, 4 batches for an update:", of_optax(4).round(4).tolist())
right = [-1, -0.75, -0.5, -0.25]
sys.exit(
    not (
        np.allclose(plain, right)
        and np.allclose(of_optax(4), right)
        and np.allclose(steps, [-0.25, 0, 0, 0])
        and iterations == 4
    )
)
PY
