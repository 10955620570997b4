#!/usr/bin/env bash
# lm-eval: the filter flexible-extract of gsm8k takes the last number of an answer, wherever it stands. Its pattern for
# a number is any two or more of digits, points, commas and dollar signs: "..." is one. An answer that ends in an
# ellipsis, or has "18..." in it, counts as wrong though the number is right, and one that trails off, as at a limit of
# tokens, is read as "...". The one full stop at the end, which the metric cuts off, is the case that a test would have.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 lm-eval==0.4.13
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata
from pathlib import Path

import lm_eval
import yaml
from lm_eval.api.metrics import exact_match_hf_evaluate
from lm_eval.filters.extraction import RegexFilter

config = yaml.safe_load((Path(lm_eval.__file__).parent / "tasks/gsm8k/gsm8k.yaml").read_text())
steps = next(each["filter"] for each in config["filter_list"] if each["name"] == "flexible-extract")
pattern = RegexFilter(**{key: value for key, value in steps[0].items() if key != "function"})
metric = {key: config["metric_list"][0][key] for key in ("ignore_case", "ignore_punctuation", "regexes_to_ignore")}


def score(answer):
    number = pattern.apply([[answer]], [{}])[0][0]
    return number, int(exact_match_hf_evaluate(predictions=[number], references=["18"], **metric)["exact_match"])


answers = [
    "She makes $18.",
    "She makes 18 dollars!",
    "She makes 18...",
    "She makes 18 dollars. Well done ...",
    "18, I think.,",
]
print("lm-eval", metadata.version("lm-eval"))
print("guess: in each of the answers the last number is 18, and each is right")
seen = [score(answer) for answer in answers]
for answer, (number, right) in zip(answers, seen):
    print(f"seen: {answer!r}: {number!r}, score {right}")
sys.exit([right for _, right in seen] != [1, 1, 0, 0, 0] or seen[3][0] != "...")
PY
