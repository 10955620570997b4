#!/usr/bin/env bash
# trl: pairs of a chosen and a rejected text without a prompt column get one from extract_prompt, which DPO and KTO
# training call by themselves: what both texts begin with. It goes by letters and on into the answers: 12 and 13 have
# the prompt 1. If one text is the beginning of the other, the prompt is a letter shorter than that, in the middle of a
# word. If nothing is common and the chosen text ends with a blank, the whole chosen text is the prompt, the chosen
# answer is the blank, and the rejected one its last letter: the pair trains something else than was meant, and nothing
# is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 transformers==5.23.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check accelerate==1.15.0 datasets==5.2.0 trl==1.16.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import trl
from trl import extract_prompt

cases = [
    (("Q: who? A: Ann", "Q: who? A: Bob"), ("Q: who? A:", " Ann", " Bob")),
    (("yes", "yes and no"), ("yes", "", " and no")),
    (("Yes, it does. ", "No."), ("", "Yes, it does. ", "No.")),
    (("3 times 4 is 12", "3 times 4 is 13"), ("3 times 4 is", " 12", " 13")),
]
print("trl", trl.__version__)
seen = []
for (chosen, rejected), guess in cases:
    row = extract_prompt({"chosen": chosen, "rejected": rejected})
    seen.append((row["prompt"], row["chosen"], row["rejected"]))
    print("guess:", guess)
    print("seen:", seen[-1])
sys.exit(
    seen
    != [
        cases[0][1],
        ("ye", "s", "s and no"),
        ("Yes, it does.", " ", "."),
        ("3 times 4 is 1", "2", "3"),
    ]
)
PY
