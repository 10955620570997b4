#!/usr/bin/env bash
# inspect-ai: match(numeric=True) is match() for numbers: it reads "1,000", "$42", "1e3" and "42 km", and is what one
# turns on for answers in numbers. A percent sign right after the number makes the answer wrong: "50%" is not 50, where
# match() without the option takes it, and a blank before the sign makes it right again. It is right if the target has
# the sign as well, and then so are 50 and $50. A benchmark whose targets are plain numbers loses its questions about
# shares and chances, and the more, the more a model writes its units.
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
print("guess: with numeric=True the answer 50% is right for the target 50, as it is without")
answers, targets = ("The answer is 50%", "The answer is 50 %", "The answer is $50"), ("50", "50%", "0.5")
found = {
    (answer, numeric): [scored(match(numeric=numeric), answer, target) for target in targets]
    for answer in answers
    for numeric in (False, True)
}
print("targets:", "; ".join(targets))
for (answer, numeric), values in found.items():
    print(f"{answer!r}, numeric={numeric}:", *values)
plain, numeric = found[answers[0], False], found[answers[0], True]
others = all(found[answer, True] == ["C", "C", "I"] for answer in answers[1:])
sys.exit(not (plain == ["C", "C", "I"] and numeric == ["I", "C", "I"] and others))
PY
