#!/usr/bin/env bash
# datasets: a function of map gets a row as a dictionary, and returns what is new or changed. A change of the row itself
# depends on what else it does: returning nothing, the change is lost; returning another column, the change is kept, in
# a Dataset; in a stream of the same rows it is lost, and a removed key comes back. A preprocessing that strips a text
# in place and returns its tokens has other texts when it is run with streaming=True, and none of the three cases says
# anything.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0
HF_HUB_OFFLINE=1 HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PY'
import sys

import datasets
from datasets import Dataset

datasets.disable_progress_bars()
rows = Dataset.from_dict({"text": [" one ", " two "], "spare": [1, 2]})


def strip(row):
    row["text"] = row["text"].strip()


def strip_and_count(row):
    row["text"] = row["text"].strip()
    del row["spare"]
    return {"length": len(row["text"])}


def strip_all(batch):
    batch["text"] = [text.strip() for text in batch["text"]]
    return {"length": [len(text) for text in batch["text"]]}


stream = rows.to_iterable_dataset()
seen = {
    "returning nothing": rows.map(strip)[0],
    "returning a length": rows.map(strip_and_count)[0],
    "returning a length, as a stream": next(iter(stream.map(strip_and_count))),
    "in batches": rows.map(strip_all, batched=True)[0],
    "in batches, as a stream": next(iter(stream.map(strip_all, batched=True))),
}
print("datasets", datasets.__version__)
print("guess: a change in place counts everywhere or nowhere")
for name, row in seen.items():
    print(f"{name}: {row}")
texts = [row["text"] for row in seen.values()]
kept = [sorted(row) for row in seen.values()]
whole = texts == [" one ", "one", " one ", "one", " one "] and kept[1] == ["length", "text"]
sys.exit(not (whole and "spare" in kept[2]))
PY
