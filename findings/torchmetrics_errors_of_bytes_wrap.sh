#!/usr/bin/env bash
# torchmetrics: pictures are often kept as uint8, and the error between black and white is 255 per pixel.
# mean_squared_error and MeanAbsoluteError subtract in the type they are given, where it wraps: 250 against 0 has a
# squared error of 36, and 9 against 10 an absolute error of 255. Large errors look small, and small ones large, by
# their direction. The peak signal-to-noise ratio converts first and is right for the same tensors, SSIM raises an
# error. Nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import torchmetrics
from torchmetrics import MeanAbsoluteError, MeanSquaredError
from torchmetrics.image import PeakSignalNoiseRatio

cases = {"250 and 0 against 0 and 250": ([250, 0], [0, 250]), "9 against 10": ([9, 9], [10, 10])}
metrics = {"MSE": MeanSquaredError, "MAE": MeanAbsoluteError, "PSNR": lambda: PeakSignalNoiseRatio(255.0)}
print("torchmetrics", torchmetrics.__version__)
seen = {}
for name, case in cases.items():
    for dtype in (torch.float32, torch.uint8):
        a, b = (torch.tensor(values, dtype=dtype) for values in case)
        seen[name, dtype] = {key: round(metric()(a, b).item(), 2) for key, metric in metrics.items()}
    print(f"guess, {name}:", seen[name, torch.float32])
    print("seen, as uint8:", seen[name, torch.uint8])
sys.exit(
    [list(seen[name, torch.uint8].values()) for name in cases] != [[36.0, 128.0, 0.17], [1.0, 255.0, 48.13]]
    or [list(seen[name, torch.float32].values()) for name in cases] != [[62500.0, 250.0, 0.17], [1.0, 1.0, 48.13]]
)
PY
