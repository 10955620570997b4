#!/usr/bin/env bash
# lighteval: the task aimo_progress_prize_1 compares answers after math_normalizer, which takes what stands in the last
# \boxed{} of a text, and nothing where there is no box. The expected answers of the data set are plain numbers: each of
# them is normalized to nothing. An answer without a box is then right whatever it says, and every answer in a box is
# wrong, the right number too: a model that follows the usual instruction has 0, and one that writes "I do not know" has
# 100%. The metric of bac-fr is made the same way. In the tasks of MATH, whose references have a box, it works.
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
from pathlib import Path

logging.disable(logging.CRITICAL)

import lighteval
from lighteval.metrics.metrics_sample import ExactMatches
from lighteval.metrics.normalizations import math_normalizer
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.requests import Doc

task = (Path(lighteval.__file__).parent / "tasks" / "tasks" / "aimo.py").read_text()
options = '{"normalize_gold": math_normalizer, "normalize_pred": math_normalizer}'
metric = ExactMatches(normalize_gold=math_normalizer, normalize_pred=math_normalizer)
sample = Doc(query="What is 40 + 12?", choices=["52"], gold_index=0)


def score(answer):
    return metric.compute(sample, ModelResponse(text=[answer]))


answers = ["The answer is \\boxed{52}.", "\\boxed{7}", "I do not know.", "52", "It is 7."]
seen = {answer: score(answer) for answer in answers}
print("lighteval", metadata.version("lighteval"))
print("the task compares by", options, options in task and 'choices=[str(line["answer"])]' in task)
print("guess: with 52 as the answer, 52 is right, in a box or without one, and all else is wrong")
for answer, right in seen.items():
    print(f"{answer!r}: {right}")
made_so = options in task and 'choices=[str(line["answer"])]' in task
sys.exit(not (made_so and list(seen.values()) == [0, 0, 1, 1, 1]))
PY
