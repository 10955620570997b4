#!/usr/bin/env bash
# jiwer: RemovePunctuation is the usual step before a word error rate, so that a comma makes no difference. Marks are
# deleted and not replaced by a blank, inside words and numbers too: 3.5 is 35, 1/2 is 12 and 10:30 is 1030 without an
# error, and well-known beside well known, or yes/no beside yes, no, are errors though marks are all that differs. Which
# marks go is a matter of Unicode's classes: a minus is punctuation, so that -5 is 5, while +5, $5 and 5< are not. A
# model that writes numbers wrongly is not found out, and one that writes a hyphen is.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check jiwer==4.0.0
"$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import jiwer

steps = jiwer.Compose([jiwer.RemovePunctuation(), jiwer.ReduceToListOfListOfWords()])
cases = {
    ("3.5", "35"): True,
    ("1/2", "12"): True,
    ("at 10:30", "at 1030"): True,
    ("-5", "5"): True,
    ("+5", "5"): False,
    ("well-known", "well known"): False,
    ("yes/no", "yes, no"): False,
}
print("jiwer", metadata.version("jiwer"))
seen = {}
for reference, answer in cases:
    rate = jiwer.wer(reference, answer, reference_transform=steps, hypothesis_transform=steps)
    seen[reference, answer] = rate == 0
    number = any(mark.isdigit() for mark in answer)
    print(f"guess, {reference!r} and {answer!r}: {'an error' if number else 'equal'}; seen: word error rate {rate}")
sys.exit(seen != cases)
PY
