"""Checks a training run that is stopped and resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def check_a_resumed_run(made: Callable[[int, str], Any]) -> None:
    """A step, a stop and two more equal three steps; `made` gets the steps and the name of a state folder."""
    whole, part = made(3, "whole"), made(3, "part")
    for _ in range(3):
        whole.advance()
    part.advance()
    part.save()
    resumed = made(3, "part")
    assert resumed.step == 1
    for _ in range(2):
        resumed.advance()
    for name, value in whole.average.items():
        torch.testing.assert_close(resumed.average[name], value, rtol=0, atol=0)
