#!/usr/bin/env bash
# rouge-score: before it compares, its tokenizer makes everything that is not a small Latin letter or a digit a blank.
# A minus, a decimal point, an operator or C++ against C# then make no difference, and an answer of another value has
# the full score. A text in Greek, Russian or Chinese has no words left: equal to its reference, it scores 0, and one
# with a number scores by that number alone. An average over languages, or over summaries with figures, hides both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check rouge-score==0.1.2 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import sys
from importlib.metadata import version

from rouge_score.rouge_scorer import RougeScorer

scorer = RougeScorer(["rouge1", "rougeL"])
pairs = {
    ("profit fell to -5 percent", "profit fell to 5 percent"): 1,
    ("version 1.5 is out", "version 1-5 is out"): 1,
    ("use x < y", "use x > y"): 1,
    ("it is written in C++", "it is written in C#"): 1,
    ("η τιμή έπεσε", "η τιμή έπεσε"): 0,
    ("цена 12 рублей", "вес 12 тонн"): 1,
}
print("rouge-score", version("rouge-score"))
print("guess: equal texts score 1, and texts that mean another number less")
seen = {}
for reference, answer in pairs:
    scores = scorer.score(reference, answer)
    seen[reference, answer] = [scores[name].fmeasure for name in ("rouge1", "rougeL")]
    print(f"{reference!r}, answered {answer!r}: ROUGE-1 and ROUGE-L", *seen[reference, answer])
sys.exit(any(seen[pair] != [score, score] for pair, score in pairs.items()))
PY
