#!/usr/bin/env bash
# datasets: Dataset.from_list and from_generator take the columns from the first row. A key that only later rows have,
# such as the tool calls, the error or the score of some answers, is dropped with all its values, without a word. The
# same rows as a JSON file keep it and fill what is missing, and so does from_list for keys within a column: a test
# whose first row happens to be complete does not see it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0
"$folder/venv/bin/python" - "$folder" <<'PY'
import json
import sys
from pathlib import Path

import datasets

datasets.disable_progress_bars()
folder = Path(sys.argv[1])
rows = [{"text": "one", "more": {"a": 1}}, {"text": "two", "more": {"b": 2}, "score": 0.5}]
(folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
cache = str(folder / "cache")
made = {
    "from_list": datasets.Dataset.from_list(rows),
    "from_list, rows reversed": datasets.Dataset.from_list(rows[::-1]),
    "load_dataset of a JSON file": datasets.load_dataset(
        "json", data_files=str(folder / "rows.jsonl"), split="train", cache_dir=cache
    ),
    "from_generator": datasets.Dataset.from_generator(lambda: iter(rows), cache_dir=cache),
}
columns = {name: sorted(table.column_names) for name, table in made.items()}
print("datasets", datasets.__version__)
print("guess: a table of two rows has the columns more, score and text, with None where a row has none")
for name, names in columns.items():
    print(f"{name}: {names}")
print("keys within the column more, by from_list:", sorted(made["from_list"][1]["more"]))
whole, short = ["more", "score", "text"], ["more", "text"]
within = sorted(made["from_list"][1]["more"])
sys.exit([*columns.values()] != [short, whole, whole, short] or within != ["a", "b"])
PY
