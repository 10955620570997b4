#!/usr/bin/env bash
# lighteval: pass@k is the probability that one of k answers is right, estimated from n of them. With n below k, or not
# set and fewer answers than k, it is 1 for every question, all answers wrong: the check for "fewer wrong answers than
# k" is met by there being few answers at all, and nothing is said. Where n is set and fewer answers came, a missing one
# counts as wrong. If n is not set it is the number of answers to the first question, for all others too: later ones
# are cut to it.
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

from lighteval.metrics.metrics_sample import PassAtK
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.requests import Doc

question = Doc(query="What is 2 + 3?", choices=["5"], gold_index=0)


def score(metric, *answers):
    return float(metric.compute(doc=question, model_response=ModelResponse(text=list(answers))))


enough = score(PassAtK(k=4, n=4), "1", "2", "3", "4")
fewer = score(PassAtK(k=4, n=2), "1", "2")
unset = score(PassAtK(k=4), "1")
between = score(PassAtK(k=2, n=4), "5", "1"), score(PassAtK(k=2, n=2), "5", "1")
metric = PassAtK(k=1)
first, second = score(metric, "1"), score(metric, "1", "5", "5", "5")
alone = score(PassAtK(k=1), "1", "5", "5", "5")
print("lighteval", metadata.version("lighteval"))
print("guess: no score for fewer answers than k, or 0 where all are wrong; a question has its own number of answers")
print(f"pass@4, all wrong: of 4 answers {enough}, of 2 with n=2 {fewer}, of 1 without n {unset}")
print("pass@2 of a right and a wrong answer: with n=4 {}, with n=2 {}".format(*between))
print(f"pass@1 of four answers, three right: {alone}; after a question with one answer: {second}")
expected = enough == first == second == 0 and fewer == unset == 1 and between == (0.5, 1.0) and alone == 0.75
sys.exit(not expected)
PY
