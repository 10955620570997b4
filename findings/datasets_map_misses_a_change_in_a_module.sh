#!/usr/bin/env bash
# datasets: map keeps its result on disk, and computes anew once the function has changed. A change in the script
# itself, or of a global number that the function uses, is noticed. One in an imported module is not: a function of
# another file is known by its name alone. A prompt or a scoring rule that is edited in a module of one's own leaves the
# old results in use, in each later run, and so does a fix. A lambda in the script that calls the module is no help.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0
export HF_HUB_OFFLINE=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1 HF_HOME="$folder/home" PYTHONDONTWRITEBYTECODE=1
cd "$folder"
echo '{"x": 1}' >rows.jsonl
cat >run.py <<'PY'
import sys

import rules
from datasets import load_dataset

factor = int(sys.argv[1])
rows = load_dataset("json", data_files="rows.jsonl", split="train")
functions = {
    "module": rules.rule,
    "module by a lambda": lambda row: rules.rule(row),
    "global number": lambda row: {"y": row["x"] * factor},
}
print(*(f"{name}: {rows.map(function)['y'][0]}" for name, function in functions.items()), sep=", ")
PY
echo 'def rule(row): return {"y": row["x"] * 10}' >rules.py
first=$(venv/bin/python run.py 10)
echo 'def rule(row): return {"y": row["x"] * 99}' >rules.py
second=$(venv/bin/python run.py 99)
venv/bin/python -c 'import datasets; print("datasets", datasets.__version__)'
echo "guess: a second run with 99 in place of 10 gives 99, wherever the 10 was"
echo "first run:  $first"
echo "second run: $second"
[ "$first" = "module: 10, module by a lambda: 10, global number: 10" ]
[ "$second" = "module: 10, module by a lambda: 10, global number: 99" ]
