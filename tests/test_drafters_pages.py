"""The command on each embedded drafter's page names a target that users have."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from pardec.models.files.catalog import DRAFTERS, embedded_drafters, embedded_names
from pardec.training.export import readme

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", embedded_drafters())
def test_the_command_of_a_drafter_names_its_target(name: str) -> None:
    [command] = re.findall(r"^pardec generate .*$", (DRAFTERS / name / "README.md").read_text(), re.MULTILINE)
    target, spec = shlex.split(command)[2], shlex.split(command)[4]
    assert spec.endswith(f":name={name}")
    if target.startswith("$("):
        assert (ROOT / target.strip("$()")).is_file()
    else:
        assert target in embedded_names()
    card = json.loads((DRAFTERS / name / "card.json").read_text())
    assert command in readme(card, 0)
