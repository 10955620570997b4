"""The command on each embedded drafter's page names a target that users have."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from pardec.models.files.catalog import DRAFTERS, embedded_drafters, embedded_names
from pardec.models.files.packaged import PACKAGED
from pardec.training.export import readme


@pytest.mark.parametrize("name", embedded_drafters())
def test_the_command_of_a_drafter_names_its_target(name: str) -> None:
    [command] = re.findall(r"^pardec generate .*$", (DRAFTERS / name / "README.md").read_text(), re.MULTILINE)
    target, spec = shlex.split(command)[2], shlex.split(command)[4]
    assert spec.endswith(f":name={name}")
    assert target in [*embedded_names(), *PACKAGED]
    card = json.loads((DRAFTERS / name / "card.json").read_text())
    assert command in readme(card, 0)
