#!/usr/bin/env bash
# distrax and JAX: a label such as -100, of padding or a prompt, and an id beyond the vocabulary are no tokens.
# Categorical.log_prob gives minus infinity for them. OneHotCategorical, the same distribution over one-hot vectors, gives
# 0, a probability of 1: jax.nn.one_hot of such a label is a vector of zeros, and the log-probability is a sum over its
# ones. A loss has its lowest value at those places, a ratio of two policies is 1, and the sum over a text counts them as
# certain. A vector with two ones has the sum of both. Nothing is checked, and a test with real tokens agrees.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check distrax==0.1.9 tfp-nightly==0.26.0.dev20261027
"$folder/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import distrax
import jax
import jax.numpy as jnp

logits = jnp.log(jnp.array([0.1, 0.2, 0.3, 0.4]))
labels = jnp.array([3, -100, -1, 4])
by_id = jnp.exp(distrax.Categorical(logits=logits).log_prob(labels))
by_vector = jnp.exp(distrax.OneHotCategorical(logits=logits).log_prob(jax.nn.one_hot(labels, 4)))
print("distrax", metadata.version("distrax"), "jax", jax.__version__)
print("guess: both give token 3 a probability of 0.4, and what is no token one of 0")
print("labels:", labels.tolist())
print("Categorical:", [round(float(number), 3) for number in by_id])
print("OneHotCategorical:", [round(float(number), 3) for number in by_vector])
expected = [jnp.array([0.4, 0, 0, 0]), jnp.array([0.4, 1, 1, 1])]
sys.exit(not all(jnp.allclose(found, number, atol=1e-6) for found, number in zip((by_id, by_vector), expected)))
PY
