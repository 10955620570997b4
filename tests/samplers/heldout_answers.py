"""Held-out problems answered by the embedded models: the number of right answers, and the forwards."""

from __future__ import annotations

from functools import cache
from typing import Any

import pardec


@cache
def loaded(name: str) -> pardec.Model:
    return pardec.load(name, device="cpu", dtype="float32")


def answered(name: str, task: str, sampler: Any, count: int, **arguments: Any) -> tuple[float, pardec.Result]:
    """The number of right answers to `count` problems, and the result."""
    model, chosen = loaded(name), pardec.task(task)
    problems = chosen.problems(split="heldout", n=count, seed=7)
    result = model.generate([problem.prompt for problem in problems], sampler=sampler, max_new_tokens=32, **arguments)
    scores = (chosen.score(problem, text) for problem, text in zip(problems, result.text or [], strict=True))
    return sum(scores), result
