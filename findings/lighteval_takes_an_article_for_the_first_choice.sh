#!/usr/bin/env bash
# lighteval: the letter of a multiple choice is looked for in a free answer: after "the answer is", and where no such
# words are found, at the beginning. A text that begins with the article A, or with a sentence about the first choice,
# is then the answer A: "A good question. It cannot be told." is right where A is, and "A is wrong. B is right." is A.
# "I think" is the ninth choice, if there are nine. Refusals and explanations so favour one choice, and a model that
# never commits itself has a score that depends on where the right answers stand. A last line "Answer: B" is read right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 datasets==5.2.0 nltk==3.9.1
"$folder/venv/bin/pip" install -q --disable-pip-version-check scikit-learn==1.9.1 sacrebleu==2.6.0 pytablewriter==1.2.1
"$folder/venv/bin/pip" install -q --disable-pip-version-check latex2sympy2_extended==1.0.6 sentencepiece==0.2.3 requests==2.34.2
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps lighteval==0.13.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import logging
import sys
from importlib import metadata

logging.disable(logging.CRITICAL)

from lighteval.metrics.dynamic_metrics import MultilingualExtractiveMatchMetric
from lighteval.metrics.utils.extractive_match_utils import IndicesExtractionConfig
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.requests import Doc

target = [IndicesExtractionConfig(prefix_for_extraction="NativeLetters")]
gpqa = MultilingualExtractiveMatchMetric(
    gold_extraction_target=target, pred_extraction_target=target, precision=6
)  # the metric of gpqa in its table of metrics


def letter(answer, choices=4):
    """Which choices the answer is right for."""
    letters = "ABCDEFGHI"[:choices]
    docs = [Doc(query="q", choices=list(letters), gold_index=index) for index in range(choices)]
    scores = [gpqa.compute(doc, ModelResponse(text=[answer])) for doc in docs]
    return "".join(one for one, score in zip(letters, scores) if score)


cases = {
    "The choices are close. Answer: B": "B", "A good question. It cannot be told.": "", "A is wrong. B is right.": "B",
    "A train that leaves at noon is late, so I choose B.": "B",
}  # fmt: skip
seen = {answer: letter(answer) for answer in cases}
ninth = letter("I think that it cannot be told.", 9)
print("lighteval", metadata.version("lighteval"))
print("guess: the letter that is chosen, or none")
for answer, guess in cases.items():
    print(f"{answer!r}: guess {guess or 'none'}, counted as {seen[answer] or 'none'}")
print(f"'I think that it cannot be told.', nine choices: guess none, counted as {ninth or 'none'}")
sys.exit(not (list(seen.values()) == ["B", "A", "A", "A"] and ninth == "I"))
PY
