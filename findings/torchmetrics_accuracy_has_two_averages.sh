#!/usr/bin/env bash
# torchmetrics: Accuracy(task="multiclass") makes a MulticlassAccuracy, and its documentation calls it a wrapper that
# picks the class by the task. The two have other averages: the wrapper counts all predictions alike, the class averages
# over the classes, and a class that the data do not have is left out. Of tokens, 99% of which are one kind and right,
# the first is 0.99 and the second a half. Replacing one name by the other in a script moves every score, and so do
# precision, recall and F1. The functions of the package differ in the same way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import torchmetrics
from torchmetrics import classification, functional

labels = torch.tensor([0] * 99 + [1])
predicted = torch.zeros(100, dtype=torch.long)
pairs = {
    "accuracy": (torchmetrics.Accuracy, classification.MulticlassAccuracy),
    "precision": (torchmetrics.Precision, classification.MulticlassPrecision),
    "recall": (torchmetrics.Recall, classification.MulticlassRecall),
    "F1": (torchmetrics.F1Score, classification.MulticlassF1Score),
}
print("torchmetrics", torchmetrics.__version__, "torch", torch.__version__)
print("guess: a metric and the class that it makes give the same number")
seen = {}
for name, (wrapper, of_class) in pairs.items():
    wrapped, plain = wrapper(task="multiclass", num_classes=5), of_class(num_classes=5)
    scores = [round(metric(predicted, labels).item(), 3) for metric in (wrapped, plain)]
    seen[name] = (type(wrapped) is of_class, *scores)
    print(f"seen: {name}: same class {seen[name][0]}: {seen[name][1]} by the wrapper, {seen[name][2]} by the class")
functions = (
    functional.accuracy(predicted, labels, task="multiclass", num_classes=5).item(),
    functional.classification.multiclass_accuracy(predicted, labels, num_classes=5).item(),
)
print(f"seen: accuracy by functions: {functions[0]:.3f} and {functions[1]:.3f}")
same, wrapped, plain = zip(*seen.values(), strict=True)
right = all(same) and set(wrapped) == {0.99} and max(plain) < 0.51
sys.exit(not (right and functions[0] > 0.98 and functions[1] < 0.51))
PY
