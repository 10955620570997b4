#!/usr/bin/env bash
# optax: prompts and padding are labelled -100 by the data collators of transformers and others, and PyTorch's cross
# entropy leaves those places out. softmax_cross_entropy_with_integer_labels counts from the end of the vocabulary: -100
# is the hundredth token from its end, and -1, the other number in use, the last one. The model is trained to write that
# token after each prompt and in the padding, with a loss that looks like one. A label beyond the vocabulary on either
# side gives NaN, so that a test with a small vocabulary finds the mistake, and a real one does not. where= leaves out.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import jax
import jax.numpy as jnp
import optax


def loss(label, vocabulary):
    logits = jax.random.normal(jax.random.key(0), (vocabulary,))
    return float(optax.softmax_cross_entropy_with_integer_labels(logits, jnp.array(label)))


print("optax", metadata.version("optax"), "jax", jax.__version__)
print("guess: a label of -100 or -1 adds 0 to the loss, or gives NaN, whatever the vocabulary")
seen = {(label, size): loss(label, size) for size in (50, 1000) for label in (-100, -1)}
for (label, size), found in seen.items():
    last = loss(size + label, size) if size + label >= 0 else None
    of = f", that of token {size + label}" if found == last else ""
    print(f"seen: label {label} of {size} tokens: {found:.3f}{of}")
beyond = loss(1000, 1000)
print(f"seen: label 1000 of 1000 tokens: {beyond:.3f}")
sys.exit(
    not (
        seen[-100, 50] != seen[-100, 50]
        and seen[-100, 1000] == loss(900, 1000)
        and seen[-1, 1000] == loss(999, 1000)
        and beyond != beyond
    )
)
PY
