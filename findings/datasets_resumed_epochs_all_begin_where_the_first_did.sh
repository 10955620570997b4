#!/usr/bin/env bash
# datasets: load_state_dict continues a streamed data set where a run was stopped, which is meant for the rest of that
# epoch. The state stays: each later pass over the data set begins at the same row, as long as its epoch number is the
# same. A loop of "for epoch in range(3): for row in data" that was resumed five eighths into its first epoch never
# sees the first rows again, and a check that the resumed pass yields what was left passes. set_epoch with another
# number ends it, which a run that does not shuffle has no reason to call.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0
HF_HUB_OFFLINE=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import datasets
from datasets import Dataset

rows = Dataset.from_dict({"x": list(range(8))}).to_iterable_dataset()
stream = iter(rows)
before = [next(stream)["x"] for _ in range(5)]
rows.load_state_dict(rows.state_dict())
epochs = [[row["x"] for row in rows] for _ in range(3)]
rows.set_epoch(1)
after = [row["x"] for row in rows]

print("datasets", datasets.__version__)
print("guess: the first pass after load_state_dict yields the rest, and each later one all rows")
print(f"seen: {before}, then stopped and resumed: {epochs}; after set_epoch(1): {after}")
sys.exit(not (epochs == [[5, 6, 7]] * 3 and after == list(range(8))))
PY
