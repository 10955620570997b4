#!/usr/bin/env bash
# safetensors: whether a bfloat16 tensor can be read for NumPy depends on what else the process has imported. NumPy
# has no such type; ml_dtypes, which JAX and others bring along, adds it by its name. The same call fails before that
# import and works after it, so that a test passes or fails with the order of the tests, and a program with its other imports.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check safetensors==0.8.0 numpy==2.4.6 ml_dtypes==0.5.4
"$folder/venv/bin/python" - "$folder" <<'PY'
import json
import struct
import sys
from pathlib import Path

import safetensors
from safetensors.numpy import load_file

file = Path(sys.argv[1]) / "file.safetensors"
header = json.dumps({"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
file.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<HH", 0x3F80, 0xC000))


def read():
    try:
        return str(load_file(file)["w"].tolist())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


before = read()
import ml_dtypes  # noqa: F401

after = read()
print("safetensors", safetensors.__version__)
print("guess: bfloat16 is refused for NumPy, or read, whatever else is imported")
print("before ml_dtypes is imported:", before)
print("after:", after)
sys.exit(not (after == "[1.0, -2.0]" and before != after))
PY
