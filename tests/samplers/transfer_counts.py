"""Transfers between host and device per step, for every method: `python -m tests.samplers.transfer_counts` lists them.

They are the most of any step after the first, with a batch of two rows. The list is `transfer_counts.txt`; names of
methods or specs after the command measure these alone, and `--where` shows the lines that transfer.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pardec
from pardec.models.errors import PardecError
from tests.samplers.fake_device import DEVICE, Crossing, FakeDevice
from tests.test_gpu import specs

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_suffix(".txt")
PROMPTS = ["add 3 4", "Tom has 18 cups. How many?"]
KINDS = ("download", "blocking upload", "upload")
ONCE = "models/layers/rope.py"  # a table that a model moves once
Case = tuple[str, str, float]  # model, spec, temperature


def cases() -> list[Case]:
    """Every method, greedy and with sampling."""
    return [(model, spec, temperature) for model, spec in dict.fromkeys(specs()) for temperature in (0.0, 0.8)]


def name_of(case: Case) -> str:
    model, spec, temperature = case
    return f"{model} {spec}{' sampling' if temperature else ''}"


@cache
def _model(name: str) -> pardec.Model:
    return pardec.load(name, device=str(DEVICE), dtype="float32")


def options(case: Case) -> dict[str, Any]:
    """The arguments of `generate`."""
    name, spec, temperature = case
    own: dict[str, Any] = {"max_new_tokens": 6, "temperature": temperature, "seed": 3, "sampler": spec}
    if name != "tiny-llama":
        own |= {"max_new_tokens": 12} | ({} if name == "tiny-nemotron" else {"block_length": 6})
    return own


def of_draft_model(name: str) -> bool:
    """Whether the case drafts with a model or a module of its own."""
    return ":name=" in name or "name=tiny" in name


def crossings(device: FakeDevice, case: Case, prompts: Sequence[str] = PROMPTS) -> list[list[Crossing]]:
    """Those of each step, without the first and without steps after which rows left.

    It is empty where the method is not for this model or not alone.
    """
    each: list[list[Crossing]] = []
    known, counts = 0, False
    device.crossings.clear()
    try:
        for event in _model(case[0]).stream(list(prompts), **options(case)):
            step = type(event).__name__ in ("Step", "Accepted")
            if step and counts:
                each.append(device.crossings[known:])
            counts, known = step, len(device.crossings)
    except (PardecError, ValueError, TypeError):
        assert not each, "a refusal comes before the first step"
    return each


def most(each: list[list[Crossing]]) -> tuple[int, ...]:
    """The most of each of `KINDS` in a step."""
    counted = [[one for one in step if not one.where.startswith(ONCE)] for step in each]
    return tuple(max(sum(one.kind == kind for one in step) for step in counted) for kind in KINDS)


def listed() -> dict[str, tuple[int, ...]]:
    """The numbers in the file, by the case's name."""
    lines = (line.rsplit(": ", 1) for line in FILE.read_text().splitlines())
    return {name: tuple(map(int, counts.split())) for name, counts in lines}


def _where(each: list[list[Crossing]]) -> Iterator[str]:
    found: Counter[Crossing] = Counter()
    for step in each:
        found |= Counter(step)
    for crossing, count in found.most_common():
        yield f"    {count} {crossing.kind} ({crossing.what}) {crossing.where}"


def main(*names: str, where: bool) -> None:
    found = listed() if names else {}
    with FakeDevice() as device:
        for case in cases():
            method = re.findall(r"(?:^|[+@])(\w+)", case[1])[-1]  # the one that the spec is for
            if names and not any(name in (method, case[1], name_of(case)) for name in names):
                continue
            if not (each := crossings(device, case)):
                continue
            found[name_of(case)] = most(each)
            print(f"{name_of(case)}: {' '.join(map(str, found[name_of(case)]))}", flush=True)
            if where:
                print(*_where(each), sep="\n", flush=True)
    FILE.write_text("".join(f"{name}: {' '.join(map(str, counts))}\n" for name, counts in found.items()))


if __name__ == "__main__":
    main(*(name for name in sys.argv[1:] if name != "--where"), where="--where" in sys.argv)
