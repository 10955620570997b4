#!/usr/bin/env bash
# nltk: BLEU of texts that equal their references is 1, or in sacrebleu 100, as soon as one of them has four words. In
# nltk's corpus_bleu each text with fewer than four words counts as one run of four words that was missed, though it has
# none: a hundred right answers of one to three words beside a right sentence score 0.3, and each further right answer
# of that kind makes the score smaller. Leaving right answers out raises it. A set of questions with short answers,
# titles or numbers among long ones is measured by the share of short ones.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check nltk==3.9.1 sacrebleu==2.6.0
"$folder/venv/bin/python" - <<'PY'
import sys

import nltk
import sacrebleu
from nltk.translate.bleu_score import corpus_bleu

long = "the cat sat on the mat and looked at the dog"
print("nltk", nltk.__version__, "sacrebleu", sacrebleu.__version__)
seen = {}
for count in (0, 1, 10, 100):
    texts = [long] + ["yes sir"] * count
    nltks = corpus_bleu([[text.split()] for text in texts], [text.split() for text in texts])
    seen[count] = round(nltks, 3), round(sacrebleu.corpus_bleu(texts, [texts]).score, 1)
    print(f"guess: 1 for a long text and {count} short ones, each equal to its reference")
    print(f"seen: nltk {seen[count][0]}, sacrebleu {seen[count][1]}")
sys.exit(seen != {0: (1.0, 100.0), 1: (0.946, 100.0), 10: (0.677, 100.0), 100: (0.28, 100.0)})
PY
