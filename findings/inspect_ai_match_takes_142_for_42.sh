#!/usr/bin/env bash
# inspect-ai: match() is the scorer for short answers, of arithmetic too, and is described as looking for the target at
# the end of an answer. The target may begin in the middle of a number there: 142, x42 and 1.42 are right where 42 is
# asked for, and so is -42, for the punctuation at both ends is removed before. A wrong sign, a digit too many and a
# moved point are what a weak model gets wrong, and count as correct. location="exact" takes -42 for 42 too.
# numeric=True compares numbers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check inspect-ai==0.3.285
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import asyncio
import sys
from importlib import metadata

from inspect_ai.model import ChatMessageUser, ModelOutput
from inspect_ai.scorer import Target, match
from inspect_ai.solver import TaskState


def scored(scorer, answer, target):
    """The value, C or I, that an answer gets."""
    message = ChatMessageUser(content="question")
    output = ModelOutput.from_content("mockllm/model", answer)
    state = TaskState("mockllm/model", sample_id=1, epoch=1, input="question", messages=[message], output=output)
    return asyncio.run(scorer(state, Target(target))).value


print("inspect-ai", metadata.version("inspect-ai"))
print("guess: where the target is 42, the answers 142, 1.42 and -42 are wrong")
answers = ("The answer is 42", "The answer is 142", "The answer is 1.42", "-42", "The answer is 41")
scorers = {"match()": match(), 'match(location="exact")': match(location="exact"), "numeric": match(numeric=True)}
found = {name: [scored(scorer, answer, "42") for answer in answers] for name, scorer in scorers.items()}
print("answers:", "; ".join(answers))
for name, values in found.items():
    print(f"{name}:", *values)
right = found["numeric"] == ["C", "I", "I", "I", "I"] and found["match()"][-1] == "I"
sys.exit(not (right and found["match()"][:4] == ["C"] * 4 and found['match(location="exact")'][3] == "C"))
PY
