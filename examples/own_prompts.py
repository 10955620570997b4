"""Compares samplers on your own prompts, with your own scoring function.

    python examples/own_prompts.py

Prints a table with one line per sampler: accuracy, forwards, tokens per forward and time. The scorer gets the problem
(with its `prompt` and `answer`) and the generated text, and returns a score from 0 to 1.
"""

from __future__ import annotations

import re

import pardec

PROMPTS = [
    {"prompt": "Tom has 18 cups. He loses 4. How many cups does Tom have now?", "answer": "14"},
    {"prompt": "Tom has 7 cups. He finds 12 cups. How many cups does Tom have now?", "answer": "19"},
    {"prompt": "A table holds 35 books. The number becomes 2 times as large. How many books remain?", "answer": "70"},
    {"prompt": "A table holds 14 books. Omar puts in 46 more. How many books remain?", "answer": "60"},
]
SAMPLERS = ["sequential+eos", "threshold:tau=0.9+eos", "credit+threshold:tau=0.9+localleap+eos@dual"]


def last_number(problem: pardec.Problem, text: str) -> float:
    """1 if the last number of the text is the answer."""
    numbers = re.findall(r"-?\d+", text)
    return float(bool(numbers) and numbers[-1] == problem.answer)


def main() -> None:
    model = pardec.load("tiny-dream")  # or "GSAI-ML/LLaDA-8B-Instruct", or a folder
    table = pardec.compare(model, prompts=PROMPTS, scorer=last_number, samplers=SAMPLERS)
    print(table.to_markdown())
    for row in table.frontier(cost="nfe", quality="accuracy"):  # no other sampler is better in both
        print("on the frontier:", row["sampler"])


if __name__ == "__main__":
    main()
