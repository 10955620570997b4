#!/usr/bin/env bash
# datasets: a stratified split needs labels of the type ClassLabel, and class_encode_column makes it of a column.
# Numbers are taken as text and sorted so: 0, 1, 10, 11, 2. With ten classes or fewer every number keeps its meaning;
# with more, label 2 becomes 4 and label 10 becomes 2. A conditional image model is then asked for other classes, and
# accuracy against labels from elsewhere drops to that of chance, though the column is still one of integers in the same
# range.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0
HF_HUB_OFFLINE=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import datasets
from datasets import Dataset


def encoded(classes):
    return Dataset.from_dict({"label": list(range(classes))}).class_encode_column("label")["label"][:]


print("datasets", datasets.__version__)
print("guess: labels 0 to n-1 are the classes 0 to n-1, and stay what they are")
seen = {classes: encoded(classes) for classes in (10, 12)}
for classes, labels in seen.items():
    print(f"seen: of {classes} classes the labels {list(range(classes))} become {labels}")
sys.exit(seen != {10: list(range(10)), 12: [0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 2, 3]})
PY
