#!/usr/bin/env bash
# datasets: an answer in a CSV file may be the word None, NA, nan or null: what a snippet of Python prints, the code of
# Namibia, sodium in a list of elements. load_dataset("csv") reads each as a missing value, in quotes too, though the
# column is one of text and to_csv writes such words unquoted and without a warning: a round trip through CSV loses
# them. A comparison with None fails for a model that was right, a filter of missing answers removes those rows, and no
# line of the log speaks of it. keep_default_na=False keeps the words; a JSON file has them as they are.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0
HF_HUB_OFFLINE=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys

import datasets
from datasets import Dataset, load_dataset

words = ["None", "NA", "nan", "null", "N/A", "n/a", "none", "yes"]
file, other = f"{sys.argv[1]}/answers.csv", f"{sys.argv[1]}/answers.json"
Dataset.from_dict({"answer": words}).to_csv(file)
Dataset.from_dict({"answer": words}).to_json(other)


def answers(kind, path, **options):
    return load_dataset(kind, data_files=path, split="train", cache_dir=sys.argv[1], **options)["answer"][:]


seen, kept, json = answers("csv", file), answers("csv", file, keep_default_na=False), answers("json", other)
print("datasets", datasets.__version__)
print("guess: a column of text that is written to CSV comes back as it was:", words)
print("seen:", seen)
print("with keep_default_na=False:", kept, "JSON:", json)
sys.exit(not (seen == [None] * 6 + ["none", "yes"] and kept == json == words))
PY
