#!/usr/bin/env bash
# dspy: answer_exact_match and EM are the metrics of its tutorials, by which optimizers choose demonstrations and
# prompts. Before they compare, they remove all punctuation, as SQuAD does for names: -5 is 5, 1.5 is 15, 3/4 is 34,
# x=-1 is x=1 and C++ is C. A wrong number counts as exact, and a program that drops signs and points scores as well.
# dspy.majority compares so too: 1.5 and 15 vote together, against the right answer that has more votes than either.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check dspy==3.4.1 litellm==1.110.2
LITELLM_LOCAL_MODEL_COST_MAP=True DSPY_CACHEDIR="$folder/cache" "$folder/venv/bin/python" -W ignore - <<'PY'
import sys
from importlib import metadata

import dspy
from dspy.evaluate import answer_exact_match

pairs = [("-5", "5"), ("1.5", "15"), ("3/4", "34"), ("x=-1", "x=1"), ("C++", "C"), ("50%", "50"), ("5", "6")]
exact = [
    pair
    for pair in pairs
    if answer_exact_match(dspy.Example(question="?", answer=pair[0]), dspy.Prediction(answer=pair[1]))
]
votes = ["15", "1.5", "7", "7", "1.5", "7", "15"]
winner = dspy.majority(dspy.Prediction.from_completions([{"answer": vote} for vote in votes])).answer
print("dspy", metadata.version("dspy"))
print("guess: different numbers are no exact match, and 7 wins a vote of three 7, two 15 and two 1.5")
print("exact matches:", *(f"{answer} and {predicted}," for answer, predicted in exact), "winner:", winner)
sys.exit(not (exact == pairs[:-1] and winner in ("15", "1.5")))
PY
