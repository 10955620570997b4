#!/usr/bin/env bash
# lm-eval: the task gsm8k_cot_self_consistency draws 64 answers, takes a number from each by a pattern, and scores the
# one that most have. An answer without a match becomes "[invalid]", and "[invalid]" votes as if it were a number: where
# 24 of 64 answers end without the sentence that is looked for, and the other 40 are split, a question that the largest
# group has right counts as wrong. Votes are by the text: "1,000" and "1000", which the metric takes for the same
# answer, are two. maj@64 can thus be below the score of a single answer, and falls with a limit of tokens that a third
# reach.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check lm-eval==0.4.13 numpy==2.4.6
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import re
import sys
from importlib import metadata, resources

from lm_eval.filters.extraction import RegexFilter
from lm_eval.filters.selection import MajorityVoteFilter, TakeFirstFilter

task = (resources.files("lm_eval") / "tasks/gsm8k/gsm8k-cot-self-consistency.yaml").read_text()
steps = task[task.index("maj@64") : task.index("maj@8")]
names = re.findall(r'function: "(\w+)"', steps)
pattern = re.search(r'regex_pattern: "(.*)"', steps).group(1).replace("\\\\", "\\")
cases = {
    "20 say 18, 20 say 17 or 19, 24 were cut off": (
        ["The answer is 18."] * 20
        + ["The answer is 17."] * 10
        + ["The answer is 19."] * 10
        + ["So each of them pays"] * 24
    ),
    "15 say 1000, 15 say 1,000, 20 say 900": (
        ["The answer is 1000."] * 15 + ["The answer is 1,000."] * 15 + ["The answer is 900."] * 20
    ),
}
print("lm-eval", metadata.version("lm-eval"), "with the steps", names, "and the pattern", pattern)
print("guess: the vote is among the answers that were found, 18 and 1000")
seen = []
for name, answers in cases.items():
    voted = TakeFirstFilter().apply(
        MajorityVoteFilter().apply(RegexFilter(regex_pattern=pattern).apply([answers], [{}]), [{}]), [{}]
    )
    voted = list(voted)
    seen += voted
    print(f"seen: {name}: the vote is for", *voted)
sys.exit(not (names == ["regex", "majority_vote", "take_first"] and seen == ["[invalid]", "900"]))
PY
