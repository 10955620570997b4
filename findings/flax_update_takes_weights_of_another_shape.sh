#!/usr/bin/env bash
# Flax: nnx.update and State.replace_by_pure_dict put weights of a checkpoint into a module, as load_state_dict does in
# PyTorch, which refuses another shape. Flax compares no shapes: the weights replace those of the module, whatever it
# was made with. A matrix with one output and the bias of the new module then broadcast: a head for one score that is
# loaded into a head for four classes gives four logits, of the expected shape, that differ by the bias alone. Weights
# that the checkpoint lacks stay random. A later error, where the shapes do not broadcast, comes from another place.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 flax==0.12.8
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PY'
import sys
import warnings

import flax
import jax
import numpy as np
from flax import nnx


class Model(nnx.Module):
    def __init__(self, outputs, rngs):
        self.body, self.head = nnx.Linear(8, 8, rngs=rngs), nnx.Linear(8, outputs, rngs=rngs)

    def __call__(self, inputs):
        return self.head(self.body(inputs))


inputs = jax.random.normal(jax.random.key(0), (3, 8))
score = nnx.state(Model(1, nnx.Rngs(0)), nnx.Param)
saved = nnx.to_pure_dict(score)
del saved["head"]["bias"]
print("flax", flax.__version__, "jax", jax.__version__)
print("guess: weights of another shape, or that are missing, are an error")
outputs = {}
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for name in ("nnx.update", "replace_by_pure_dict"):
        model = Model(4, nnx.Rngs(1))
        if name == "nnx.update":
            nnx.update(model, saved)
        else:
            state = nnx.state(model, nnx.Param)
            nnx.replace_by_pure_dict(state, saved)
            nnx.update(model, state)
        outputs[name] = np.asarray(model(inputs))
        shapes = f"kernel {model.head.kernel.shape}, bias {model.head.bias.shape}"
        print(f"seen: {name}: {shapes}, first row", outputs[name][0])
print("seen: warnings:", [str(one.message) for one in said])
equal = all(np.ptp(output, axis=1).max() == 0 and output.shape == (3, 4) for output in outputs.values())
sys.exit(not equal or bool(said))
PY
