#!/usr/bin/env bash
# PyTorch: what a value beyond the largest becomes depends on which float8 it is cast to. float8_e4m3fn keeps the
# largest value, 448, even for infinity; float8_e5m2 gives infinity, and float8_e4m3fnuz gives NaN. ml_dtypes, which JAX
# and writers of ONNX and safetensors use, gives NaN for e4m3fn too. An overflow in a cache or a weight of the most used
# type is thus silent, a check for NaN after the cast finds nothing, and the same recipe in two libraries writes
# different files.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 ml-dtypes==0.6.0
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import ml_dtypes
import numpy
import torch

values = numpy.array([400.0, 464.0, 465.0, 1e6, -1e6, numpy.inf, numpy.nan, 57344.0, 61440.0], numpy.float32)
kinds = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
print("torch", torch.__version__, "ml_dtypes", ml_dtypes.__version__)
print("guess: one rule for all float8 types, and the same in both libraries; infinity does not become a number")
print(f"{'':25}", *(f"{value:9.0f}" for value in values))
seen = {}
for kind in kinds:
    theirs = values.astype(getattr(ml_dtypes, kind)).astype(numpy.float32)
    for size in (1, 4096):  # a single value, and as many as are cast by vector instructions
        tensor = torch.from_numpy(values).repeat(size).to(getattr(torch, kind)).float()
        own = tensor.view(size, -1)
        assert all(numpy.array_equal(row, own[0].numpy(), equal_nan=True) for row in own.numpy())
    seen[kind] = own[0].numpy(), theirs
    for library, row in zip(("torch", "ml_dtypes"), seen[kind]):
        print(f"{library:9} {kind:15}", *(f"{value:9.0f}" for value in row))


def beyond(kind, library):
    """What 1e6, -1e6 and infinity become."""
    return [float(value) for value in seen[kind][library][3:6]]


def equal(one, other):
    return numpy.array_equal(numpy.array(one), numpy.array(other), equal_nan=True)


inf, nan = numpy.inf, numpy.nan
expected = [("float8_e4m3fn", 0, [448, -448, 448]), ("float8_e4m3fn", 1, [nan] * 3), ("float8_e4m3fnuz", 0, [nan] * 3),
            ("float8_e5m2", 0, [inf, -inf, inf]), ("float8_e5m2", 1, [inf, -inf, inf])]  # fmt: skip
sys.exit(not all(equal(beyond(kind, library), wanted) for kind, library, wanted in expected))
PY
