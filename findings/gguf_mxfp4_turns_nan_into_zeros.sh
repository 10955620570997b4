#!/usr/bin/env bash
# gguf: a NaN or an infinity among the weights, after an overflow in training or a merge, stays visible in the formats
# with a scale in float16 (Q4_0, Q8_0): its block is read back with NaN, and a check for it stops the file. In MXFP4,
# whose scale is a power of two, all 32 values of the block become 0, the 31 good ones too. The file looks sound, NaN is
# not found in it, and a conversion by way of it repairs nothing: it removes a row's weights.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check gguf==0.19.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import sys
from importlib.metadata import version

import numpy as np
from gguf import GGMLQuantizationType as Format
from gguf.quants import dequantize, quantize

print("gguf", version("gguf"))
print("guess: a NaN or an infinity is found in what is read back, in every format")
seen = {}
for name in ("BF16", "Q8_0", "Q4_0", "MXFP4"):
    for bad in (np.nan, np.inf):
        values = np.full((1, 64), 0.5, np.float32)
        values[0, 3] = bad
        with np.errstate(all="ignore"):
            read = dequantize(quantize(values, Format[name]), Format[name])[0]
        block = read[:32]
        seen[name, bad] = int((~np.isfinite(block)).sum()), int((block == 0).sum())
        print(f"{name}, a block with one {bad}: {seen[name, bad][0]} of 32 not finite, {seen[name, bad][1]} are 0")
        assert np.allclose(read[32:], 0.5, atol=0.01)
found = [seen[name, bad][0] > 0 for name in ("BF16", "Q8_0", "Q4_0") for bad in (np.nan, np.inf)]
sys.exit(not (all(found) and seen["MXFP4", np.nan] == seen["MXFP4", np.inf] == (0, 32)))
PY
