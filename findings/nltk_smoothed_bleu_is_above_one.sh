#!/usr/bin/env bash
# nltk: smoothing keeps the BLEU of a short text from being 0, and nltk has seven kinds of it. One takes for granted
# that the best score is 1. With method5 and method7 a text of six words that equals its reference has 1.12, so that 1
# is not a perfect score, and a share or a logarithm of it is wrong. Nor is a right answer of one or two words 1: it has
# from 0.18 to 1 by the method, and in method4 the right answer of two words has less than that of one. A reward, or a
# threshold, is another quantity for each method, and for each length of the reference.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check nltk==3.9.1
"$folder/venv/bin/python" - <<'PY'
import sys

import nltk
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

cases = {"six words, all right": "a b c d e f", "one word, right": "yes", "two words, right": "yes sir"}
print("nltk", nltk.__version__)
print("guess: 1 for each text that equals its reference")
seen = {}
for number in (1, 2, 3, 4, 5, 7):
    how = getattr(SmoothingFunction(), f"method{number}")
    seen[number] = [
        round(sentence_bleu([text.split()], text.split(), smoothing_function=how), 3) for text in cases.values()
    ]
    print(f"seen, method{number}:", dict(zip(cases, seen[number])))
sys.exit(
    seen
    != {
        1: [1.0, 0.178, 0.316],
        2: [1.0, 0.595, 0.707],
        3: [1.0, 0.354, 0.595],
        4: [1.0, 1.0, 0.221],
        5: [1.117, 0.192, 0.39],
        7: [1.117, 0.192, 0.436],
    }
)
PY
