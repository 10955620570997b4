#!/usr/bin/env bash
# ray data: map_batches with a function that changes nothing should leave the rows as they are. Batches are NumPy arrays
# unless one says otherwise, and a column of integers in which one is missing is one of float64 there: ids above 2**53
# are other ids afterwards, whole numbers are fractions, and the missing one is no longer None but NaN, which a filter
# for None does not find. It is so per block: the same column is still one of integers in blocks that miss none, so that
# types depend on where the rows are. batch_format="pyarrow" and "pandas" keep all of it, and so does map.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check "ray[data]==2.60.0" numpy==2.4.6 pandas==3.1.1
"$folder/venv/bin/pip" install -q --disable-pip-version-check pyarrow==26.0.1
RAY_USAGE_STATS_ENABLED=0 "$folder/venv/bin/python" - <<'PY'
import logging
import sys

import ray
import ray.data

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
logging.disable(logging.WARNING)
values = [2**53 + 1, None]


def read(**options):
    rows = ray.data.from_items([{"id": value} for value in values], override_num_blocks=1)
    return [row["id"] for row in rows.map_batches(lambda batch: batch, **options).take_all()]


print("ray", ray.__version__)
print("guess:", values)
seen = {}
for name, options in (("NumPy", {}), ("pyarrow", {"batch_format": "pyarrow"})):
    seen[name] = repr(read(**options))
    print(f"seen, {name} batches:", seen[name])
sys.exit(seen != {"NumPy": "[9007199254740992.0, nan]", "pyarrow": "[9007199254740993, None]"})
PY
