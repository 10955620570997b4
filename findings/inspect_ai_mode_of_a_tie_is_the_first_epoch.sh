#!/usr/bin/env bash
# inspect-ai: each question may be asked in several epochs, and the reducer "mode" takes the score that most of them
# have, as a vote of the majority. In a tie it takes the one that came first: of two epochs always the first, so that
# the second has no effect at all, and of four with two right ones a right or a wrong, by their order. The order of
# epochs is chance, and so is the accuracy: the same scores in another order give another one, where "mean" and "median"
# give a half. With an odd number of epochs and two values there is no tie, which is the case that one tries.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check inspect-ai==0.3.285
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import itertools
import sys
from importlib import metadata

from inspect_ai.scorer import Score, mean_score, median_score, mode_score

reducers = {"mean": mean_score(), "median": median_score(), "mode": mode_score()}


def values(reducer, *epochs):
    """What a reducer gives for all orders of the scores of a question's epochs."""
    orders = sorted(set(itertools.permutations(epochs)))
    return {str(reducer([Score(value=value) for value in order]).value) for order in orders}


print("inspect-ai", metadata.version("inspect-ai"))
print("guess: the score of a question does not depend on the order of its epochs")
found = {}
for epochs in ("CI", "CCI", "CCII"):
    for name, reducer in reducers.items():
        found[epochs, name] = values(reducer, *epochs)
        print(f"{' '.join(epochs)} by {name}:", *sorted(found[epochs, name]))
pairs = {
    order: str(reducers["mode"]([Score(value=value) for value in order]).value) for order in ("CC", "CI", "IC", "II")
}
print("two epochs by mode:", pairs)
first = all(value == order[0] for order, value in pairs.items())
ties = found["CI", "mode"] == found["CCII", "mode"] == {"C", "I"}
others = all(len(scores) == 1 for (_, name), scores in found.items() if name != "mode")
sys.exit(not (first and ties and others and found["CCI", "mode"] == {"C"}))
PY
