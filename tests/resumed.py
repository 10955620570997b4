"""Checks a training run that is stopped and resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def check_a_resumed_run(made: Callable[[int, str], Any]) -> None:
    """Two steps, a stop and two more equal four steps; `made` gets the steps and the name of a state folder."""
    whole, part = made(4, "whole"), made(4, "part")
    for _ in range(4):
        whole.advance()
    for _ in range(2):
        part.advance()
    part.save()
    resumed = made(4, "part")
    assert resumed.step == 2
    for _ in range(2):
        resumed.advance()
    for name, value in whole.average.items():
        torch.testing.assert_close(resumed.average[name], value, rtol=0, atol=0)
