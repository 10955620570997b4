#!/usr/bin/env bash
# jiwer: a word error rate counts words, and words are what stands between white space. jiwer splits at blanks alone,
# and takes several of them for one: a line break, a tab or a no-break space is a letter like others, so that "yes\nno"
# is one word, which differs from "yes no" in both. A transcript or an answer in lines, against a reference in one, has
# an error at each line's end, counted twice, though every word is right. torchmetrics splits at all white space. The
# difference is no error, and depends on how a file was wrapped.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check jiwer==4.0.0 torch==2.13.0 torchmetrics==1.9.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import jiwer
import torchmetrics
from torchmetrics.functional.text import word_error_rate

print("jiwer", metadata.version("jiwer"), "torchmetrics", torchmetrics.__version__)
reference = "one two three four five six"
seen = {}
for name, mark in (("two blanks", "  "), ("a line break", "\n"), ("a tab", "\t"), ("a no-break space", "\u00a0")):
    text = mark.join(["one two", "three four", "five six"])
    seen[name] = round(jiwer.wer(reference, text), 2), round(word_error_rate([text], [reference]).item(), 2)
    print("guess: 0.0, each word is right")
    print(f"seen, {name} between each two words: jiwer {seen[name][0]}, torchmetrics {seen[name][1]}")
other = ("a line break", "a tab", "a no-break space")
sys.exit(seen != {"two blanks": (0.0, 0.0)} | dict.fromkeys(other, (0.67, 0.0)))
PY
