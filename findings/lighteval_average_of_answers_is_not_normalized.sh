#!/usr/bin/env bash
# lighteval: avg@n is the mean score of n answers, and pass@1 of the same n answers is the same number by its
# definition. They differ: pass@k strips the blanks of answers, applies a normalization that one passes, and scores
# the text after the thoughts of a reasoning model were removed from it. avg@n takes the same arguments, its metric is
# defined with strip_strings=True, and does none of this: it scores the raw text, with the thoughts. A model whose
# answers end in a line break has pass@1 of 100% and avg@n of 0, without a warning.
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

from lighteval.metrics.metrics_sample import AvgAtN, PassAtK
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.requests import Doc

question = Doc(query="What is 2 + 3?", choices=["5"], gold_index=0)
thought = [f"<think>{word}</think>5" for word in ("2 and 3", "3 and 2", "easy", "five")]
cases = {
    "plain": ({}, ModelResponse(text=["5", "5", "6", "6"])),
    "a line break at the end": ({"strip_strings": True}, ModelResponse(text=["5\n", " 5", "6\n", " 6"])),
    "normalized": ({"normalize": lambda text: text.rstrip(".")}, ModelResponse(text=["5.", "5.", "6.", "6."])),
    "thoughts removed": ({}, ModelResponse(text=thought, text_post_processed=["5", "5", "6", "6"])),
}
seen = {}
for name, (options, response) in cases.items():
    metrics = PassAtK(k=1, n=4, **options), AvgAtN(n=4, **options)
    seen[name] = tuple(float(metric.compute(doc=question, model_response=response)) for metric in metrics)
print("lighteval", metadata.version("lighteval"))
print("guess: pass@1 and avg@4 of four answers, two of which are right, are both 0.5")
for name, (one, average) in seen.items():
    print(f"{name}: pass@1 {one}, avg@4 {average}")
others = [scores for name, scores in seen.items() if name != "plain"]
sys.exit(not (seen["plain"] == (0.5, 0.5) and others == [(0.5, 0.0)] * 3))
PY
