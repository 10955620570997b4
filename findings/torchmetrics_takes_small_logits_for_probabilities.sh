#!/usr/bin/env bash
# torchmetrics: binary metrics take probabilities or logits, and tell them apart by their values: if all are within 0
# and 1 they are probabilities, else logits. It is decided for each batch: logits that happen to lie there, as those of
# a new or unsure classifier do, and those of a batch of one often, are read as probabilities, so that 0.3 is a no and
# not a yes. An accuracy over the same data then depends on the size of the batches and on their order, and a metric
# that needs a calibration is off without a sign of it. Passing sigmoid(logits) gives the same in any batches.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import torchmetrics
from torchmetrics.classification import BinaryAccuracy

logits = torch.tensor([0.3, 2.0, 0.1, -1.5, 0.4, 0.2, -0.6, 0.45])
labels = (logits > 0).long()  # each prediction is right


def accuracy(size, scores):
    metric = BinaryAccuracy()
    for batch, expected in zip(scores.split(size), labels.split(size), strict=True):
        metric.update(batch, expected)
    return metric.compute().item()


print("torchmetrics", torchmetrics.__version__, "torch", torch.__version__)
print("guess: 1.0, however the data are cut into batches")
seen = {size: accuracy(size, logits) for size in (8, 4, 2, 1)}
for size, found in seen.items():
    print(f"seen: batches of {size}: {found}")
by_probability = {accuracy(size, logits.sigmoid()) for size in seen}
print(f"seen: probabilities, in any batches: {by_probability}")
sys.exit(not (by_probability == {1.0} and list(seen.values()) == [1.0, 1.0, 0.75, 0.375]))
PY
