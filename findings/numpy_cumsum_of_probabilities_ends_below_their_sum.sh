#!/usr/bin/env bash
# NumPy: sampling by a uniform number looks up its place in the cumulative sum of the probabilities. In float32 the sum of
# a flat distribution over 151,936 tokens is 1, as sum adds in pairs; cumsum adds one after the other, and its last value
# is 0.998. One draw in 600 then lies above every value, and searchsorted gives an index beyond the vocabulary, or, once it
# is clipped, the last token.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import sys

import numpy as np

tokens = 151936
flat = np.full(tokens, 1 / tokens, np.float32)
ends = np.cumsum(flat)
drawn = np.searchsorted(ends, np.random.default_rng(0).random(100_000, np.float32), side="right")
beyond = int((drawn == tokens).sum())
print("numpy", np.__version__)
print("guess: the cumulative sum ends where the sum is, at 1, and every draw is a token")
print(f"sum {flat.sum():.5f}, last value of cumsum {ends[-1]:.5f}, in float64 {np.cumsum(flat, dtype=float)[-1]:.5f}")
print(f"{beyond} of 100000 draws are index {tokens}, which is no token")
sys.exit(not (abs(flat.sum() - 1) < 1e-5 and ends[-1] < 0.999 and 100 < beyond < 300))
PY
