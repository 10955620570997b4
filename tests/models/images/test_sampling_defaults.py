"""The sampling defaults of image models, which files give before anything is loaded, are those of the loaded model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import pardec
from pardec.comparison.plan import Grid, Loading, plan
from pardec.models.files.sources import locate
from pardec.models.load import load_any
from pardec.models.loading.kinds import sampling_defaults
from pardec.models.loading.recognition import read_description
from tests.models import captioned_folders, chameleon_files, emu3_files, infinity_files, nextstep_files

FOLDERS: dict[str, Callable[[Path], object]] = {
    "chameleon": chameleon_files.write,
    "lumina": lambda path: chameleon_files.write(path, lumina=True),
    "emu3": emu3_files.write_library,
    "infinity": infinity_files.folder,
    "nextstep": nextstep_files.write,
    "lumina_dimoo": lambda path: captioned_folders.folder(path, "lumina_dimoo"),
    "mmada": lambda path: captioned_folders.folder(path, "mmada"),
}
OWN = {"chameleon": 0.7, "infinity": 0.5}  # temperatures of the authors, where they are not 1


def stated(name: str) -> dict[str, object]:
    source = locate(name)
    return sampling_defaults(source, read_description(source)[0])


@pytest.mark.parametrize("family", FOLDERS)
def test_files_and_the_model_agree(family: str, tmp_path: Path) -> None:
    path = tmp_path / family
    FOLDERS[family](path)
    model = load_any(str(path), device="cpu")
    assert stated(str(path)) == model.imaging.defaults
    assert stated(str(path))["temperature"] == OWN.get(family, 1.0)


@pytest.mark.parametrize("family", ["chameleon", "emu3"])
def test_a_generation_config_comes_before_the_authors_values(family: str, tmp_path: Path) -> None:
    path = tmp_path / family
    FOLDERS[family](path)
    (path / "generation_config.json").write_text(json.dumps({"temperature": 0.3, "min_p": 0.1, "guidance_scale": 1}))
    assert stated(str(path)) | {"top_k": None, "top_p": None} == {
        "temperature": 0.3, "min_p": 0.1, "cfg": None, "top_k": None, "top_p": None,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["tiny-llamagen", "tiny-mar", "tiny-var"])
def test_embedded_models_agree(name: str) -> None:
    model = pardec.load(name, device="cpu")
    assert stated(name) == model.imaging.defaults


def test_a_comparison_samples_alike_by_name_and_by_model(tmp_path: Path) -> None:
    emu3_files.write_library(tmp_path / "emu3")
    (tmp_path / "emu3" / "generation_config.json").write_text(json.dumps({"min_p": 0.1}))
    by_name, by_model = (
        plan(model, ["sequential"], {"captions": pardec.task("captions")}, {}, Grid(limit=1), Loading(device="cpu"))
        for model in (str(tmp_path / "emu3"), pardec.load(tmp_path / "emu3", device="cpu"))
    )
    assert by_name.config["generate"] == by_model.config["generate"]
    assert by_name.config["generate"] == {"temperature": 1.0, "top_k": 2048, "cfg": 3.0, "min_p": 0.1}
