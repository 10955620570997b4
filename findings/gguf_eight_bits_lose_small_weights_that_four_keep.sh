#!/usr/bin/env bash
# gguf: Q8_0 has sixteen times the steps of Q4_0, and is taken for the safe choice where Q4_0 is not good enough. Both
# keep a scale per block of 32 in float16, a step of the type: the finer the steps, the smaller the scale, and the
# earlier it is below the smallest float16. A block whose largest weight is below 4e-6 is all zeros in Q8_0, and off by
# 8% in Q4_0, whose steps are larger; with 1e-5 as the largest the weights are off by 24% in Q8_0 and by 7% in Q4_0.
# Small embeddings of rare tokens, and factors of adapters, are such weights. BF16 and MXFP4 keep them at any size.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check gguf==0.19.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import numpy as np
from gguf import GGMLQuantizationType, quants

random = np.random.default_rng(0)
weights = random.uniform(-1, 1, (512, 32)).astype(np.float32)
weights /= np.abs(weights).max(axis=1, keepdims=True)


def error(kind, size):
    """Root of the mean squared error of weights whose largest of each block is `size`, relative to the weights."""
    kind, scaled = GGMLQuantizationType[kind], weights * np.float32(size)
    back = quants.dequantize(quants.quantize(scaled, kind), kind)
    return float(np.sqrt(np.mean((back / np.float32(size) - weights) ** 2) / np.mean(weights**2)))


print("gguf", metadata.version("gguf"), "numpy", np.__version__)
print("guess: Q8_0 is nearer to the weights than Q4_0, whatever their size")
seen = {}
for size in (1.0, 1e-3, 1e-4, 1e-5, 5e-6, 3e-6, 1e-6):
    seen[size] = {kind: error(kind, size) for kind in ("Q8_0", "Q4_0", "BF16", "MXFP4")}
    print(f"seen: largest {size:g}:", ", ".join(f"{kind} {value:.1%}" for kind, value in seen[size].items()), "off")
small = [seen[size]["Q8_0"] == 1 and seen[size]["Q4_0"] < 0.5 for size in (3e-6, 1e-6)]
even = all(abs(case["BF16"] - seen[1.0]["BF16"]) < 0.01 for case in seen.values())
sys.exit(not (all(small) and even and seen[1.0]["Q8_0"] < seen[1.0]["Q4_0"] / 10))
PY
