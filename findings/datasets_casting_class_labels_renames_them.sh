#!/usr/bin/env bash
# datasets: two sources name the same classes in another order, and concatenate_datasets refuses to join them. Casting
# one to the features of the other, the next thing to try, keeps the numbers and changes the names: every cat is a dog
# afterwards, without a word, and the sets are joined. Casting to text gives "0" and "1", which cast to the other
# order are numbers again, and not names. A label is right only if it is mapped by its name, as
# align_labels_with_mapping does.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0
HF_HUB_OFFLINE=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import datasets
from datasets import ClassLabel, Dataset, Features, Value, concatenate_datasets


def animals(names):
    return Dataset.from_dict({"y": [names.index("cat"), names.index("dog")]}, Features({"y": ClassLabel(names=names)}))


def names(data):
    return [data.features["y"].int2str(label) for label in data["y"]]


one, other = animals(["cat", "dog"]), animals(["dog", "cat"])
try:
    concatenate_datasets([one, other])
    refused = False
except ValueError:
    refused = True
cast = other.cast_column("y", one.features["y"])
seen = {
    "cast": names(cast),
    "joined": names(concatenate_datasets([one, cast])),
    "by way of text": names(other.cast_column("y", Value("string")).cast_column("y", one.features["y"])),
    "aligned": names(other.align_labels_with_mapping({"cat": 0, "dog": 1}, "y")),
}
print("datasets", datasets.__version__)
print("guess: a class label keeps its name when its column is cast to a ClassLabel with the same names")
print(f"seen: joined as they are is refused: {refused}; of {names(other)}:", seen)
wrong = ["dog", "cat"]
right = {"cast": wrong, "joined": ["cat", "dog", *wrong], "by way of text": wrong, "aligned": ["cat", "dog"]}
sys.exit(not (refused and names(other) == ["cat", "dog"] and seen == right))
PY
