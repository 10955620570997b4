#!/usr/bin/env bash
# lighteval: loglikelihood_f1 is an F1 of two classes. F1 is by convention that of the positive class, and with
# average=None, as the metric is defined, scikit-learn gives one for each class. lighteval takes the larger of the two:
# a model that answers "no" to every question, of which 90% are no, has an F1 of 0.95, where F1 is used so that it has
# 0. Which class a score belongs to is not shown, and may change between two models that are compared.
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

from lighteval.metrics.metrics_corpus import CorpusLevelF1Score
from lighteval.metrics.sample_preparator import LoglikelihoodPreparator
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.requests import Doc
from sklearn.metrics import f1_score

labels = [1] * 10 + [0] * 90


def score(predictions):
    inputs = [
        LoglikelihoodPreparator().prepare(
            Doc(query="Is it so?", choices=[" no", " yes"], gold_index=label),
            ModelResponse(logprobs=[-2.0, -1.0] if predicted else [-1.0, -2.0]),
        )
        for label, predicted in zip(labels, predictions)
    ]
    return float(CorpusLevelF1Score(None).compute_corpus(inputs))


cases = {"always no": [0] * 100, "half of the yes found": [1] * 5 + [0] * 95, "always yes": [1] * 100}
seen = {name: (score(predicted), f1_score(labels, predicted, zero_division=0)) for name, predicted in cases.items()}
print("lighteval", metadata.version("lighteval"), "scikit-learn", metadata.version("scikit-learn"))
print("guess: the F1 of the class yes, as scikit-learn computes it for two classes")
for name, (one, usual) in seen.items():
    print(f"{name}: lighteval {one:.3f}, F1 of yes {usual:.3f}")
(no, nothing), (half, usual), (yes, same) = seen.values()
sys.exit(not (nothing == 0 and no > 0.94 and half > 0.97 and usual < 0.7 and abs(yes - same) < 1e-6))
PY
