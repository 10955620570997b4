"""Models that a script builds in the cache: found there by name, and what is said before they are built."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import pardec
from pardec.cli import run
from pardec.models.errors import ArgumentError, UnknownModelError
from pardec.models.files.catalog import EMBEDDED


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the model would lie; the cache is empty."""
    monkeypatch.setenv("PARDEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "smollm2-masked"


def test_before_it_is_built_the_error_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnknownModelError, match="smollm2-masked has not been built") as error:
        pardec.load("smollm2-masked")
    assert "scripts/get_smollm2 --masked builds it" in error.value.hint
    assert run(["chat", "smollm2-masked"]) == 2
    assert capsys.readouterr().err.splitlines()[-2] == "error: smollm2-masked has not been built"
    assert run(["show", "smollm2-masked"]) == 0
    assert "loads: natively, once it is built" in capsys.readouterr().out


def test_a_built_model_loads_by_its_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(EMBEDDED / "tiny-dream", folder)
    model = pardec.load("smollm2-masked", device="cpu")
    assert model.name == "smollm2-masked"
    ids = torch.arange(6)[None]
    assert torch.equal(model.logits(ids), pardec.load("tiny-dream", device="cpu").logits(ids))
    with pytest.raises(ArgumentError, match="smollm2-masked has one version"):
        pardec.load("smollm2-masked", revision="main")
    assert run(["list", "models"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed.count("smollm2-masked") == 1
    assert "smollm2" in listed
