#!/usr/bin/env bash
# Orbax: a checkpoint is restored into a target, a tree of arrays with the shapes of the model that is to run. If an
# array of the file has another shape, an error says so, which is what finds a wrong vocabulary or width. That holds for
# targets of jax.Array and jax.ShapeDtypeStruct. With NumPy arrays as the target, as in a tool without JAX's devices,
# the shape is not compared, and the file's array comes back; the type is followed, so that the target does not look
# ignored. PyTreeRestore with a ShapeDtypeStruct as item and no restore_args compares nothing either.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
"$folder/venv/bin/pip" install -q --disable-pip-version-check orbax-checkpoint==0.12.8
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - "$folder" <<'PY' 2> >(tail -n 3 >&2)
import logging
import sys
from importlib import metadata
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

logging.disable(logging.CRITICAL)
path = Path(sys.argv[1]) / "checkpoint"
checkpointer = ocp.StandardCheckpointer()
checkpointer.save(path, {"weight": jax.numpy.arange(6.0).reshape(2, 3)})
checkpointer.wait_until_finished()


def restored(restore):
    try:
        array = restore()["weight"]
    except ValueError as error:
        return str(error)[:60]
    return f"{array.dtype} {tuple(array.shape)}"


struct = jax.ShapeDtypeStruct((4, 3), np.float32)
tree = ocp.args.PyTreeRestore(item={"weight": struct})
seen = {
    "NumPy array": restored(lambda: checkpointer.restore(path, {"weight": np.zeros((4, 3), np.float16)})),
    "PyTreeRestore": restored(lambda: ocp.PyTreeCheckpointer().restore(path, args=tree)),
    "ShapeDtypeStruct": restored(lambda: checkpointer.restore(path, {"weight": struct})),
    "jax.Array": restored(lambda: checkpointer.restore(path, {"weight": jax.numpy.zeros((4, 3))})),
}
print("orbax-checkpoint", metadata.version("orbax-checkpoint"), "jax", jax.__version__)
print("guess: an array of 2 by 3 is not restored into a target of 4 by 3")
for name, result in seen.items():
    print(f"seen: {name}: {result}")
sys.stdout.flush()
refused = all(seen[name].startswith("Requested shape") for name in ("ShapeDtypeStruct", "jax.Array"))
sys.exit(not (refused and seen["NumPy array"] == "float16 (2, 3)" and seen["PyTreeRestore"].endswith("(2, 3)")))
PY
