#!/usr/bin/env bash
# torchmetrics: SSIM compares two pictures with constants in proportion to the range of their values. Without data_range
# it is taken from the values: not of the pair, but of the whole batch. One bright picture in it makes all others look
# more alike, up to 1 where it has another scale, and the same pairs have other scores by the size of the batches and
# the order of the data. With reduction="none" too, which gives a number per picture. A range of 1 that all batches
# happen to have hides it, and nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import torchmetrics
from torchmetrics.image import StructuralSimilarityIndexMeasure

torch.manual_seed(0)
picture = torch.rand(1, 1, 16, 16)
noisy = (picture + 0.3 * torch.rand_like(picture) - 0.15).clamp(0, 1)
bright = torch.rand(1, 1, 16, 16)
print("torchmetrics", torchmetrics.__version__)
alone = round(StructuralSimilarityIndexMeasure()(noisy, picture).item(), 3)
print("guess:", alone, "for the pair in any batch")
seen = {}
for scale in (1, 10, 255):
    batch = torch.cat([noisy, bright * scale]), torch.cat([picture, bright * scale])
    seen[scale] = [
        round(StructuralSimilarityIndexMeasure(reduction="none", data_range=known)(*batch)[0].item(), 3)
        for known in (None, 1.0)
    ]
    print(f"seen, beside a picture of values up to {scale}: {seen[scale][0]}, and with data_range=1: {seen[scale][1]}")
sys.exit(not (alone < 0.96 and seen[1][0] < 0.96 < seen[10][0] < 0.98 and seen[255][0] > 0.999))
PY
