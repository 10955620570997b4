#!/usr/bin/env bash
# lm-eval: limit is a number of questions from 1 on, and below 1 a part of the task: 0.99 is 99% of it. Just at 1 it
# turns over: 1.0, meant as all of it, as the last value of a sweep over 0.1, 0.5 and 1.0, is one question. A table then
# ends in scores of 0 or 100%. 0.001 of 200 questions, less than one, is one, and 2.5 is two.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 lm-eval==0.4.13
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1
"$folder/venv/bin/python" - <<'PY' 2>&1 | grep -vE "it/s|WARNING|INFO"
import sys
from importlib import metadata

from datasets import Dataset, DatasetDict
from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask

asked = []


class Yes(LM):
    def generate_until(self, requests, disable_tqdm=False):
        asked.extend(requests)
        return ["yes"] * len(requests)

    loglikelihood = loglikelihood_rolling = None


def rows(**_):
    return DatasetDict(
        {"test": Dataset.from_dict({"q": [f"question {row}" for row in range(200)], "a": ["yes"] * 200})}
    )


def questions(limit):
    config = {"task": "yes", "custom_dataset": rows, "test_split": "test", "output_type": "generate_until"}
    config |= {"doc_to_text": "{{q}}", "doc_to_target": "{{a}}", "generation_kwargs": {"until": ["\n"]}}
    asked.clear()
    simple_evaluate(Yes(), tasks=[ConfigurableTask(config=config)], limit=limit, bootstrap_iters=0)
    return len(asked)


limits = [0.1, 0.5, 0.99, 1.0]
print("lm-eval", metadata.version("lm-eval"))
print("guess: of 200 questions, a limit of 0.1, 0.5, 0.99 and 1.0 asks 20, 100, 198 and 200")
seen = [questions(limit) for limit in limits]
print("seen:", ", ".join(f"{limit} asks {number}" for limit, number in zip(limits, seen)))
sys.exit(seen != [20, 100, 198, 1])
PY
