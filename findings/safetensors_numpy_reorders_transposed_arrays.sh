#!/usr/bin/env bash
# safetensors: safetensors.numpy.save_file writes the memory of an array in the order in which it lies there. A transposed
# array, or one in Fortran order such as scikit-learn and LAPACK return, is read back with the right shape and its values
# in other places, without an error. safetensors.torch refuses such a tensor, and version 0.7.0 wrote NumPy's right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 0.7.0 0.8.0; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/pip" install -q --disable-pip-version-check safetensors==$version numpy==2.4.6
done
cat >"$folder/saved.py" <<'PY'
import sys

import numpy as np
import safetensors
from safetensors.numpy import load_file, save_file

file, expected = sys.argv[1:]
weights = np.arange(6, dtype=np.float32).reshape(2, 3).T
save_file({"weights": weights}, file)
read = load_file(file)["weights"]
print(f"safetensors {safetensors.__version__}: saved {weights.tolist()}, read {read.tolist()}")
sys.exit(str(np.array_equal(read, weights)) != expected)
PY
echo "guess: an array is read as it was saved, or refused because its memory is not in C order"
"$folder/0.7.0/bin/python" "$folder/saved.py" "$folder/file.safetensors" True
"$folder/0.8.0/bin/python" "$folder/saved.py" "$folder/file.safetensors" False
