#!/usr/bin/env bash
# datasets: to_json writes numbers with ten decimals, so that the file has other numbers than the table.
# Log-probabilities, losses and small probabilities are rounded, 1e-12 becomes 0.0, and 0.1 + 0.2 becomes 0.3. Nothing
# is said; Python's json and to_csv of the same table write all digits, and Parquet keeps the bits. Scores that were
# saved this way and read back no longer equal those of the run, and a logarithm of a stored probability may fail.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0
HF_HUB_OFFLINE=1 HF_HOME="$folder/cache" "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import math
import sys
from pathlib import Path

import datasets

datasets.disable_progress_bars()
folder = Path(sys.argv[1])
values = [1e-12, math.log(0.7), 0.1 + 0.2, 123456789.123456789]
table = datasets.Dataset.from_dict({"x": values})
table.to_json(folder / "table.json")
table.to_csv(folder / "table.csv")
table.to_parquet(folder / "table.parquet")
seen = {
    "to_json": [json.loads(line)["x"] for line in (folder / "table.json").read_text().splitlines()],
    "to_csv": [float(line) for line in (folder / "table.csv").read_text().split()[1:]],
    "to_parquet": datasets.Dataset.from_parquet(str(folder / "table.parquet"), cache_dir=str(folder))["x"][:],
    "json.dumps": json.loads(json.dumps(table["x"][:])),
}
print("datasets", datasets.__version__)
print(f"guess: every file has the numbers {values}")
for name, numbers in seen.items():
    print(f"{name}: {numbers}, {sum(a == b for a, b in zip(numbers, values))} of {len(values)} as in the table")
first, *others = seen.values()
right = all(number == round(value, 10) for number, value in zip(first, values))
sys.exit(not (first[0] == 0.0 and right and first != values and all(numbers == values for numbers in others)))
PY
