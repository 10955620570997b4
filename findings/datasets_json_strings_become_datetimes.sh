#!/usr/bin/env bash
# datasets: a column of a JSON file whose strings all look like dates is loaded as datetimes. Expected answers such as
# "2024-05-01" are then no strings: they equal no text that a model wrote, and str() of them adds a time of day. One row
# that is no date keeps the whole column as text, so that a part of a file has other types than the file, and removing
# one row changes all others. The same rows through from_list or a CSV file stay strings.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0
"$folder/venv/bin/python" - "$folder" <<'PY'
import csv
import json
import sys
from pathlib import Path

import datasets

datasets.disable_progress_bars()
folder = Path(sys.argv[1])


def loaded(kind, name, answers):
    file = folder / name
    if kind == "json":
        file.write_text("".join(json.dumps({"answer": answer}) + "\n" for answer in answers))
    else:
        with file.open("w", newline="") as out:
            csv.writer(out).writerows([["answer"], *([answer] for answer in answers)])
    table = datasets.load_dataset(kind, data_files=str(file), split="train", cache_dir=str(folder / "cache"))
    return table[0]["answer"]


day = "2024-05-01"
seen = {
    "JSON, two dates": loaded("json", "dates.json", [day, "1999-12-31"]),
    "JSON, a date and another text": loaded("json", "mixed.json", [day, "unknown"]),
    "JSON, a date and a date without a day": loaded("json", "month.json", [day, "1999-12"]),
    "CSV, two dates": loaded("csv", "dates.csv", [day, "1999-12-31"]),
    "from_list, two dates": datasets.Dataset.from_list([{"answer": day}, {"answer": "1999-12-31"}])[0]["answer"],
}
print("datasets", datasets.__version__)
print(f"guess: the first answer is {day!r}, as it is in the file")
for name, value in seen.items():
    print(f"{name}: {value!r}, as text {value!s:.30}")
first, *others = seen.values()
sys.exit(not (not isinstance(first, str) and str(first) == f"{day} 00:00:00" and all(value == day for value in others)))
PY
