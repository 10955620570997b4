#!/usr/bin/env bash
# gguf: formats with a scale per block take it from the block's largest value, which is then among the best kept.
# MXFP4's scale is a power of two, rounded down so that the largest value may lie above the largest number, 6: it is cut
# to 6, and 7.9 loses a quarter. The outliers that a block's scale is there for are what suffers, always towards zero,
# and not at random: the next larger scale would keep 7.9 as 8. In Q4_0, with as many bits, the largest value is exact.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check gguf==0.19.0
"$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import numpy as np
from gguf import GGMLQuantizationType, quants


def kept(kind, largest):
    """What becomes of a block's largest value; the others are small."""
    block = np.zeros((1, 32), np.float32)
    block[0, :4] = largest, 1.0, -0.5, 0.25
    kind = GGMLQuantizationType[kind]
    return float(quants.dequantize(quants.quantize(block, kind), kind)[0, 0])


values = [4.1, 6.0, 6.5, 7.0, 7.5, 7.9, 8.0, -7.9, 15.9]
print("gguf", metadata.version("gguf"), "numpy", np.__version__)
print("guess: the largest value of a block is kept within half a step, as 8 for 7.9")
lost = {}
for value in values:
    seen = kept("MXFP4", value), kept("Q4_0", value)
    lost[value] = 1 - seen[0] / value
    print(f"{value}: MXFP4 {seen[0]:.5g} ({lost[value]:+.0%} lost), Q4_0 {seen[1]:.5g}")
random = np.random.default_rng(0).standard_normal((4096, 32)).astype(np.float32)
back = quants.dequantize(quants.quantize(random, GGMLQuantizationType.MXFP4), GGMLQuantizationType.MXFP4)
rows, at = np.arange(len(random)), np.abs(random).argmax(1)
ratio = np.abs(back[rows, at]) / np.abs(random[rows, at])
smaller = np.mean(ratio < 1)
print(f"of 4096 normal blocks the largest value is smaller in {smaller:.0%}, and by {1 - ratio.mean():.1%} on average")
right = abs(lost[7.9] - 0.24) < 0.01 and lost[6.0] == 0 and kept("MXFP4", 8.0) == 8 and kept("MXFP4", -7.9) == -6
exact = all(abs(kept("Q4_0", value) - value) < abs(value) * 1e-3 for value in values)
sys.exit(not (right and exact and smaller > 0.5))
PY
