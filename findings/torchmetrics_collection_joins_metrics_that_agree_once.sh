#!/usr/bin/env bash
# torchmetrics: a MetricCollection computes several metrics of the same predictions, and saves time by groups of those
# that count the same things. The groups are found by looking: metrics whose counts are equal after the first batch are
# one from then on. Two thresholds, or one metric with padding and one without, have equal counts wherever the first
# batch has no case that they treat differently, and the second then reports the first one's number for the whole data
# set. Another order of the batches gives other results, and nothing is said. compute_groups=False is right in any
# order.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import torchmetrics
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, MulticlassAccuracy

padding = {
    "all tokens": lambda: MulticlassAccuracy(4, average="micro"),
    "without padding": lambda: MulticlassAccuracy(4, average="micro", ignore_index=0),
}
thresholds = {
    "from half": lambda: BinaryAccuracy(threshold=0.5),
    "from nine tenths": lambda: BinaryAccuracy(threshold=0.9),
}
tokens = [([1, 2, 3], [1, 2, 1]), ([1, 2, 3], [0, 0, 3])]
scores = [([0.99, 0.01], [1, 0]), ([0.6, 0.7, 0.8], [0, 0, 1])]


def results(metrics, batches, **options):
    collection = MetricCollection({name: make() for name, make in metrics.items()}, **options)
    for predictions, targets in batches:
        collection.update(torch.tensor(predictions), torch.tensor(targets))
    return {name: round(value.item(), 3) for name, value in collection.compute().items()}


print("torchmetrics", torchmetrics.__version__)
seen = {}
for name, metrics, batches in (("padding", padding, tokens), ("thresholds", thresholds, scores)):
    seen[name] = [results(metrics, batches), results(metrics, batches[::-1])]
    print(f"guess, {name}:", results(metrics, batches, compute_groups=False), "in any order")
    print(f"seen, {name}:", seen[name][0], "and with the batches in the other order", seen[name][1])
sys.exit(
    seen
    != {
        "padding": [{"all tokens": 0.5, "without padding": 0.5}, {"all tokens": 0.5, "without padding": 0.75}],
        "thresholds": [{"from half": 0.6, "from nine tenths": 0.6}, {"from half": 0.6, "from nine tenths": 0.8}],
    }
)
PY
