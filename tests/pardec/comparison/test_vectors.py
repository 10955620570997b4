"""Comparisons of models whose tokens are vectors, and of models of classes: figures, report, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean

import pytest

import pardec
from pardec.comparison import metrics
from pardec.comparison.report import page
from pardec.io.jsonl import RowsFile
from pardec.models.errors import SpecError
from tests.pardec.painters import painter
from tests.pardec.vector_painters import DEFAULTS, vector_painter

SIDE, CLASSES, LEVELS = 6, 36, 4  # images of the size that classes are read back at: 6x6 cells of 8 pixels


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vectors")


@pytest.fixture(scope="module")
def target(home: Path) -> Path:
    return vector_painter(home / "target", side=SIDE, classes=CLASSES, levels=LEVELS)


@pytest.fixture(scope="module")
def draft(home: Path) -> Path:
    return vector_painter(home / "draft", side=SIDE, classes=CLASSES, levels=LEVELS, seed=8)


@pytest.fixture(scope="module")
def table(target: Path, draft: Path, home: Path) -> pardec.Table:
    samplers = ["mar:steps=6", f'cspd:draft="{draft}",k=2,steps=8', f'cspd:draft="{target}",k=2,steps=8,mode=exact']
    arguments = {"limit": 3, "batch_size": 2, "replays": 2, "device": "cpu", "seeds": (0, 1)}
    return pardec.compare(target, "classes", samplers, out=home / "run", **arguments)


def test_the_figures_are_those_of_the_rows(table: pardec.Table, home: Path) -> None:
    plain, drafted, twin = table.rows
    assert (plain["nfe"], plain["tokens_per_forward"], plain["exact"]) == (6, SIDE**2 / 6, "distribution")
    assert (plain["acceptance_rate"], plain["acceptance_length"], plain["draft_backbone_seconds"]) == (None, None, None)
    assert (plain["agreement"], plain["floor_share"], plain["simulated_speed_up"]) == (None, None, None)
    assert all(row["accuracy"] == 0 and 0 <= row["lenient"] < 1 and row["distance"] > 0 for row in table.rows)
    assert all(row["failed"] == 0 for row in table.rows)
    rows = [row for row in RowsFile(home / "run" / "rows.jsonl").rows.values() if row["sampler"] == drafted["sampler"]]
    assert len(rows) == 6
    tested, kept = (sum(sum(row[name]) for row in rows) for name in ("tested", "kept"))
    assert tested > 0
    assert drafted["acceptance_rate"] == kept / tested
    assert drafted["draft_forwards"] == fmean(row["draft_forwards"] for row in rows) > 0
    assert drafted["seconds"] == pytest.approx(fmean(row["seconds"] for row in rows))
    for name, part in (("head", "head"), ("draft_backbone", "draft backbone")):
        assert drafted[f"{name}_seconds"] == pytest.approx(fmean(row["parts"][part] for row in rows))
    inside = [value for name, value in drafted.items() if name.endswith(("backbone_seconds", "head_seconds"))]
    assert 0 < sum(inside) < drafted["seconds"]
    assert all(row["text"] is None and row["tokens"] == [] and len(row["steps"]) == SIDE**2 for row in rows)
    assert twin["acceptance_rate"] == 1.0  # its own draft


def test_the_table_and_the_report_say_it(table: pardec.Table, home: Path) -> None:
    shown = table.to_markdown()
    for head in ("accuracy", "FID", "forwards", "accepted", "drafter's forwards", "seconds", "deviation"):
        assert re.search(rf"\| {head} +\|", shown), head
    for head in ("acceptance length", "simulated", "agreement", "padding"):
        assert head not in shown
    config = json.loads((home / "run" / "config.json").read_text())
    assert {name: config["generate"][name] for name in DEFAULTS} == DEFAULTS
    assert (config["family"], config["notes"]) == ("continuous", [])
    html = page(table.run)
    assert html.count("data:image/png") >= 2 * 2 * 3  # an image and a map, of two classes, by three samplers
    assert 'id="images"' in html
    assert 'id="rates"' in html
    assert 'id="accepted"' not in html
    assert "forward 2: 0.0%" in html or "forward 3: " in html
    assert re.search(r"<br>6 forwards, wrong</figcaption>", html)
    assert re.search(r"forwards, \d+ of \d+ drafts accepted, wrong</figcaption>", html)
    assert re.search(r"<h3>class \d+: a-", html)


def test_acceptance_is_counted_by_forward() -> None:
    rows = [
        {"error": None, "tested": [0, 4, 3], "kept": [0, 1, 3]},
        {"error": None, "tested": [0, 4], "kept": [0, 2]},
        {"error": "it broke", "tested": None, "kept": None},
        {"error": None, "tested": None, "kept": None},
    ]
    assert metrics.by_forward(rows) == [(0, 0), (3, 8), (3, 3)]
    assert metrics.acceptance_rate(rows) == 6 / 11
    assert metrics.acceptance_rate(rows[2:]) is None


def test_a_run_goes_on(table: pardec.Table, target: Path, home: Path) -> None:
    samplers = [row["sampler"] for row in table.rows]
    arguments = {"limit": 3, "batch_size": 2, "replays": 2, "device": "cpu", "seeds": (0, 1)}
    again = pardec.compare(target, "classes", samplers, out=home / "run", resume=True, **arguments)
    assert again.rows == table.rows


def test_a_loaded_model_is_compared_like_a_named_one(target: Path, table: pardec.Table) -> None:
    entry = pardec.load(target, device="cpu")
    again = pardec.compare(entry, "classes", ["mar:steps=6"], limit=3, batch_size=2, seeds=(0, 1))
    assert again.rows[0]["lenient"] == table.rows[0]["lenient"]
    assert again.rows[0]["distance"] == pytest.approx(table.rows[0]["distance"], rel=1e-2)


def test_the_temperature_is_one_unless_the_checkpoint_or_the_caller_says(home: Path) -> None:
    folder = vector_painter(home / "plain", side=SIDE, classes=CLASSES, levels=LEVELS, temperature=None)
    (folder / "generation_config.json").unlink()
    asked = {"limit": 1, "device": "cpu"}
    for arguments, expected in (({}, 1.0), ({"temperature": 0.5}, 0.5)):
        run = pardec.compare(folder, "classes", ["mar:steps=2"], **asked, **arguments).run
        assert run.config["samplers"][0]["arguments"]["temperature"] == expected
        (result,) = run.traces.values()
        assert result.settings["temperature"] == expected


def test_models_of_classes_whose_tokens_are_codes_are_compared(tmp_path: Path) -> None:
    codes = painter(tmp_path / "codes", "class", side=12, levels=3)  # three classes: most problems ask for others
    table = pardec.compare(codes, "classes", ["sequential", "sjd:window=24"], limit=36, batch_size=12, device="cpu")
    for row in table.rows:
        assert (row["failed"], row["problems"]) == (33, 36)
        assert "is not a class of codes" in row["error"]
        assert row["distance"] > 0
    kept = [row for row in table.run.rows if row["error"] is None and row["sampler"] == "sequential"]
    assert {row["problem"] for row in kept} == {
        "a-small-red-circle", "a-small-red-square", "a-small-red-triangle",
    }  # fmt: skip


@pytest.mark.parametrize(("task", "message"), [
    ("captions", "target draws classes and the task 'captions' gives it captions"),
    ("arithmetic", "answers in images and the task 'arithmetic' asks for text"),
])  # fmt: skip
def test_other_tasks_are_refused(target: Path, task: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        pardec.compare(target, task, ["mar"], limit=1)
    with pytest.raises(SpecError, match=message):
        pardec.compare(pardec.load(target, device="cpu"), task, ["mar"], limit=1)


def test_classes_are_for_models_of_classes() -> None:
    with pytest.raises(SpecError, match="tiny-llamagen draws captions and the task 'classes' gives it classes"):
        pardec.compare("tiny-llamagen", "classes", ["sequential"], limit=1)
    with pytest.raises(SpecError, match="tiny-llama answers in text and the task 'classes' asks for images"):
        pardec.compare("tiny-llama", "classes", ["sequential"], limit=1)


def test_samplers_of_other_models_are_refused(target: Path) -> None:
    with pytest.raises(SpecError, match="'threshold' is for masked models, not for models whose tokens are"):
        pardec.compare(target, "classes", ["threshold"], limit=1)


def test_tune_is_for_tokens_that_have_ids(target: Path) -> None:
    with pytest.raises(SpecError, match="target draws vectors, and tune searches samplers of token sequences"):
        pardec.tune(target, "classes")
