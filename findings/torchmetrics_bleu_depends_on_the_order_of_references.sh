#!/usr/bin/env bash
# torchmetrics: BLEU takes the length of the closest reference, to punish answers that are too short. Where a shorter
# and a longer one are equally close, the definition takes the shorter, and so do sacrebleu and nltk. torchmetrics takes
# the one that stands first: the same answer against the same two references has 100, or 87, by their order, and a data
# set whose references were shuffled or read from a set has another score. SacreBLEUScore, which is named after the
# library that made scores comparable, does so too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q --disable-pip-version-check sacrebleu==2.6.0 nltk==3.9.1
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import sacrebleu
import torchmetrics
from nltk.translate.bleu_score import corpus_bleu
from torchmetrics.text import BLEUScore, SacreBLEUScore

answer = "the cat sat on the mat today"
references = ["the cat sat on the mat", "the cat sat on the mat today now"]
print("torchmetrics", torchmetrics.__version__)
seen = {}
for order in (references, references[::-1]):
    seen["sacrebleu"] = [*seen.get("sacrebleu", []), sacrebleu.corpus_bleu([answer], [[text] for text in order]).score]
    seen["nltk"] = [*seen.get("nltk", []), 100 * corpus_bleu([[text.split() for text in order]], [answer.split()])]
    for metric in (BLEUScore(), SacreBLEUScore()):
        name = type(metric).__name__
        seen[name] = [*seen.get(name, []), 100 * metric([answer], [order]).item()]
seen = {name: [round(score, 1) for score in scores] for name, scores in seen.items()}
print("guess: the order of references makes no difference")
for name, scores in seen.items():
    print(f"seen, {name}: {scores[0]}, and {scores[1]} with the references in the other order")
sys.exit(
    seen != {"sacrebleu": [100.0] * 2, "nltk": [100.0] * 2, "BLEUScore": [100.0, 86.7], "SacreBLEUScore": [100.0, 86.7]}
)
PY
