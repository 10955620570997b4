"""`pardec image` and `load` with small VAR files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import pardec
from pardec.cli import run
from pardec.images import pngs
from pardec.models.errors import ModelError
from tests import fresh

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "golden" / "code_var" / "checkpoint"
LARGE, SMALL = FILES / "drafter_3.pth", FILES / "refiner_3.pth"
SPEC = f'code:refiner="{SMALL}",steps=3'


def test_the_command_draws_and_its_file_reproduces_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.png"
    command = ["image", str(LARGE), "--class", "3", "--class", "0", "--cfg", "1.5", "--top-k", "40", "-s", SPEC]
    assert run([*command, "-o", str(out), "--save", str(tmp_path / "saved"), "--json", "--seed", "7"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["timing"]["draft_forwards"] == 4
    assert set(document["timing"]["parts"]) == {"transformer", "refiner", "draw"}
    assert [one["nfe"] for one in document["pictures"]] == [3, 3]
    assert document["settings"] == {"temperature": 1.0, "top_k": 40, "top_p": 0.95, "cfg": 1.5}
    record = pngs.read(out)
    assert [one["draft_forwards"] for one in record["pictures"]] == [2, 2]
    again = pardec.load(LARGE, device="cpu").generate(**pngs.generate_arguments(record))
    saved = pardec.Result.load(tmp_path / "saved")
    assert again.tokens == saved.tokens
    assert saved.sides == (1, 2, 3, 4, 5)


def test_the_summary_names_the_refiner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["image", str(LARGE), "--class", "3", "-s", SPEC, "-o", str(tmp_path / "out.png")]) == 0
    assert "1 image, 55 tokens in 3 forwards and 2 of the refiner, 18.33 tokens per forward" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "a dog"], "drafter_3 draws classes and cannot read captions"),
        (["--class", "9"], "label 9 is not a class of drafter_3"),
        (["--class", "1", "--top-k", "65"], "--top-k 65, and drafter_3 has 64 codes"),
        (["--class", "1", "-s", "code"], "refiner is missing"),
        (["--class", "1", "-s", "code:refiner=nowhere"], "nowhere"),
        (["--class", "1", "-s", "mar"], "'mar' is for models whose tokens are vectors"),
    ],
)
def test_refused(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["image", str(LARGE), *arguments, "-o", str(tmp_path / "out.png")]) == 2
    assert message in capsys.readouterr().err


def test_a_refiner_of_another_tokenizer_or_none_is_refused(tmp_path: Path) -> None:
    for file in (SMALL, FILES / "refiner_3.args.json"):
        shutil.copyfile(file, tmp_path / file.name)
    spec = f'code:refiner="{tmp_path / SMALL.name}",steps=3'
    with pytest.raises(ModelError, match="refiner_3 has no image tokenizer"):
        pardec.load(LARGE, device="cpu").generate(label=1, sampler=spec)


def test_the_script_compares_samplers_of_token_maps() -> None:
    script = str(ROOT / "scripts" / "generate_image.py")
    arguments = [script, "--model", str(LARGE), "--images", "1", "--class", "2"]
    code = f"import runpy, sys\nsys.argv = {arguments}\nrunpy.run_path({script!r}, run_name='__main__')"
    [done] = fresh.results([{"language": "python", "code": code}], ROOT)
    assert done["code"] == 0, done["told"]
    samplers = [line.split()[0] for line in done["told"].splitlines()]
    assert samplers == ["sequential", "fastvar", "fastvar:keep=0.3"]
