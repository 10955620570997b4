"""Images of the embedded MAR for problems of the task `classes`: which of them show their class."""

from __future__ import annotations

from functools import cache
from typing import Any

import pardec

PLAIN = "mar:steps=12,head=50"


@cache
def tiny_mar() -> pardec.Model:
    return pardec.load("tiny-mar", device="cpu", dtype="float32")


@cache
def decoded(spec: str, count: int = 8) -> Any:
    """The result of the first `count` problems."""
    problems = pardec.task("classes").problems(n=count)
    return tiny_mar().generate(label=[one.label for one in problems], sampler=spec, cfg=2.0, seed=0)


def readable(spec: str, count: int = 8, of: int = 8) -> float:
    """How many of the first `count` images of `of` show their class."""
    task = pardec.task("classes")
    images = decoded(spec, of).images
    return sum(task.score(one, image) for one, image in zip(task.problems(n=of)[:count], images, strict=False))
