"""The verdict of a measured row follows from its intervals, and every command shows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pardec.cli import run
from pardec.samplers import measured
from pardec.samplers.measured import Measured

LEVEL = Measured("a", "ar", "m", "t", "sequential", "a", problems=30, right=0.5, plain_right=0.5)
FASTER, SLOWER = {"seconds": (0.9, 0.85, 0.97)}, {"seconds": (1.1, 1.03, 1.2)}
BETTER, WORSE = {"quality": (0.2, 0.1, 0.3)}, {"quality": (-0.2, -0.3, -0.1)}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "level"),
        (FASTER, "gains"),
        ({"seconds": (0.9, 0.85, 0.99)}, "level"),
        (SLOWER, "loses"),
        ({"seconds": (1.1, 1.01, 1.2)}, "level"),
        (WORSE, "loses"),
        ({"quality": (-0.2, -0.3, 0.0)}, "level"),
        (BETTER, "gains"),
        ({"quality": (0.2, 0.0, 0.3)}, "level"),
        (BETTER | SLOWER, "level"),
        (BETTER | {"seconds": (1.3, 1.0, 1.7)}, "level"),
        (BETTER | FASTER, "gains"),
        (WORSE | FASTER, "loses"),
        (WORSE | SLOWER, "loses"),
        (FASTER | {"problems": 29}, "faster"),
        (BETTER | {"problems": 29}, "gains"),
        (SLOWER | {"problems": 29}, "loses"),
    ],
)
def test_verdict_holds_only_if_the_whole_interval_shows_it(changes: dict[str, Any], verdict: str) -> None:
    assert replace(LEVEL, **changes).verdict == verdict


def test_needs_do_not_hide_a_gain() -> None:
    needing = replace(LEVEL, needs="a long context")
    assert needing.verdict == replace(needing, **SLOWER).verdict == "needs a long context"
    assert replace(needing, **FASTER).verdict == "gains"
    assert replace(needing, problems=0, **FASTER).verdict == "needs a long context"


def test_rows_without_problems_have_no_verdict_of_their_figures() -> None:
    waiting = replace(LEVEL, problems=0, **FASTER)
    assert (waiting.verdict, str(waiting)) == ("not measured", "not measured")


def test_list_and_show_have_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    first, further = measured.of_method("lookup", "ar")
    assert (first.task, further.task) == ("copies", "captions")
    assert measured.verdict("of another package", "ar") == "not measured"
    assert run(["list", "samplers"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    column = head.index("verdict")
    (line,) = (line for line in lines if line.startswith("lookup "))
    assert line[column:].startswith(first.verdict + " ")
    assert run(["show", "lookup"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line.startswith("measured: ")] == [f"measured: {first}", f"measured: {further}"]
