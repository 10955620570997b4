#!/usr/bin/env bash
# ray data: filter takes a function or, as a warning recommends since it is faster, the same condition as an expression.
# None is not 1, and a function with row["a"] != 1 keeps a row whose value is missing. The expression col("a") != 1
# drops it: a comparison with nothing is nothing, as in SQL, and what is not true is left out. A condition and its
# opposite together then leave rows out which a function divides without a rest. Making a pipeline faster by following
# the warning removes the rows without an answer or a label, with no word about it.
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
from ray.data.expressions import col

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
logging.disable(logging.WARNING)
rows = ray.data.from_items([{"a": value} for value in (1, None, 3)], override_num_blocks=1)
print("ray", ray.__version__)
function = [row["a"] for row in rows.filter(lambda row: row["a"] != 1).take_all()]
expression = [row["a"] for row in rows.filter(expr=col("a") != 1).take_all()]
print("guess: [None, 3] by a function and by an expression")
print("seen, a function:", function)
print("seen, an expression:", expression)
sys.exit((function, expression) != ([None, 3], [3]))
PY
