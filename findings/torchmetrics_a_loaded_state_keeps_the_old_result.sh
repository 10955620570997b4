#!/usr/bin/env bash
# torchmetrics: a metric with persistent states is saved with a model, so that a run which was stopped goes on counting.
# compute keeps its result until the next update or reset, and load_state_dict does not count as one: a metric that has
# been read once returns what it had before, and not the result of the state that was loaded, though its state is the
# loaded one. Scores of several checkpoints that are loaded into one object, one after the other, are all the first
# one's. All that is said is that the metric was not updated, which is said where the result is right too: with a new
# object, or a reset before loading.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torchmetrics
from torchmetrics import MeanMetric


def metric(*values):
    made = MeanMetric()
    made.persistent(True)
    for value in values:
        made.update(value)
    return made


print("torchmetrics", torchmetrics.__version__)
saved = [metric(float(score)).state_dict() for score in (1, 2, 3)]
one, seen = metric(), []
for state in saved:
    one.load_state_dict(state)
    seen.append(one.compute().item())
fresh = []
for state in saved:
    one.reset()
    one.load_state_dict(state)
    fresh.append(one.compute().item())
print("guess: three saved states have the results", fresh)
print("seen: loaded one after the other:", seen, "with a reset before each:", fresh)
sys.exit((seen, fresh) != ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]))
PY
