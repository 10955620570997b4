#!/usr/bin/env bash
# lm-eval: use_cache keeps a model's answers in a file. An answer is found again by the request alone: neither the model
# nor its arguments (revision, type of numbers, quantization, chat settings of an API) are part of the key or of the
# file's name. A second model that is evaluated with the same path gets the first one's scores, to the last digit,
# without a forward. Comparing a model with its quantized form by changing one argument of a command that has a cache
# compares it with itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 lm-eval==0.4.13 sqlitedict==2.1.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
from importlib import metadata

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, CachingLM

folder = sys.argv[1]
rows = [{"question": f"{number} + 1 =", "answer": number + 1} for number in range(1, 5)]


class Constant(LM):
    """Prefers the answer at one place of the four."""

    def __init__(self, place):
        super().__init__()
        self.place, self.forwards = place, 0

    def loglikelihood(self, requests):
        self.forwards += len(requests)
        return [(0.0 if request.args[1].strip() == str(self.place) else -9.0, False) for request in requests]

    def loglikelihood_rolling(self, requests):
        raise NotImplementedError

    def generate_until(self, requests):
        raise NotImplementedError


requests = [
    Instance("loglikelihood", row, (row["question"], f" {choice}"), index)
    for row in rows for index, choice in enumerate(range(2, 6))
]  # fmt: skip


def choices(model):
    """The choice of the largest likelihood, for each question."""
    likelihoods = [value for value, _ in model.loglikelihood(requests)]
    return [2 + max(range(4), key=lambda index: likelihoods[at + index]) for at in range(0, len(likelihoods), 4)]


first, second = Constant(3), Constant(5)
cached = choices(CachingLM(first, f"{folder}/cache.db")), choices(CachingLM(second, f"{folder}/cache.db"))
alone = choices(Constant(3)), choices(Constant(5))
print("lm-eval", metadata.version("lm-eval"))
print("guess: the cache is of a model; another one with the same path is run, or refused")
print("without a cache the models choose", *alone)
print("with one path for the cache they choose", *cached, "in", first.forwards, "and", second.forwards, "requests")
sys.exit(not (alone[0] != alone[1] and cached == (alone[0], alone[0]) and second.forwards == 0))
PY
