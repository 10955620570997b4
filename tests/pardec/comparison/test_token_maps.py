"""Comparisons of models of token maps: CoDe's curve over its steps, its cost, and refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import pardec
from pardec.bench.decode import bench
from pardec.comparison import metrics, sweep
from pardec.comparison.report import page
from pardec.models.errors import ModelError, SpecError
from pardec.requests import draft_models
from tests.samplers.scale_toys import model as toy

PIXELS, CLASSES = 48, 36  # images of the size that classes are read back at


def painter(**more: Any) -> Any:
    network = toy(classes=CLASSES, **more)
    network.imaging.downsample = PIXELS // 4  # type: ignore[misc]
    return network


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pardec.Table:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft_models, "scale_model", lambda *_: painter(name="small", seed=9, layers=1))
        samplers = ["sequential", "code:refiner=small,steps=1", "code:refiner=small", "fastvar:layer=1"]
        out = tmp_path_factory.mktemp("maps") / "run"
        return pardec.compare(
            pardec.Model(painter()), "classes", samplers, out=out, limit=3, batch_size=2, replays=1, cfg=1.5
        )


def test_the_figures_count_both_models(table: pardec.Table) -> None:
    """The small model has a third of the parameters: 1 + 3/3 and 3 + 1/3 forwards of the large one."""
    rows = {row["sampler"]: row for row in table.rows}
    assert not any(row["failed"] for row in rows.values())
    weighted = {name: row["weighted_forwards"] for name, row in rows.items()}
    assert weighted == {
        "sequential": 4,
        "code:refiner=small,steps=1": 2,
        "code:refiner=small": pytest.approx(10 / 3),
        "fastvar:layer=1": 4,
    }
    one = rows["code:refiner=small,steps=1"]
    assert one["nfe_to_end"] == 1
    assert (one["nfe"], one["draft_forwards"], one["cost_ratio"]) == (1, 3, pytest.approx(1 / 3))
    assert one["refiner_seconds"] > 0
    assert rows["sequential"]["transformer_seconds"] > 0
    assert rows["sequential"]["exact"] == "distribution"
    assert rows["fastvar:layer=1"]["tokens_fed"] < rows["sequential"]["tokens_fed"]


def test_the_report_shows_maps(table: pardec.Table) -> None:
    report = page(table.run)
    assert "its token maps, coarse to fine" in report
    assert "Weighted forwards" in report
    assert "3 forwards and 1 of the refiner" in report


def test_the_table_names_both_models_seconds_and_their_weighted_forwards(table: pardec.Table) -> None:
    shown = table.to_markdown()
    assert re.search(r"\| weighted forwards +\|", shown)
    assert re.search(r"\| \d\.\d{3} \(\d\.\d{3} \+ \d\.\d{3}\) +\|", shown)


def test_vectors_have_no_weighted_forwards() -> None:
    row = {"nfe": 3, "draft_forwards": 2, "cost_ratio": None, "parts": {"backbone": 1.0}, "tokens": [], "error": None}
    assert metrics.weighted_forwards([row]) is None


def test_code_is_swept_over_its_steps_and_judged_against_sequential() -> None:
    curves = sweep.curves(["code:refiner=small"], "scales")
    assert [(curve.name, curve.parameter, curve.reference) for curve in curves] == [
        ("code:refiner=small", "code.steps", "sequential"),
        ("sequential", None, None),
    ]
    assert curves[0].samplers[0] == "code:refiner=small,steps=-1"
    assert len(curves[0].samplers) == 4


def test_what_is_not_built_for_token_maps_is_refused(tmp_path: Path) -> None:
    model = pardec.Model(painter())
    with pytest.raises(SpecError, match="draws token maps, and tune searches samplers of token sequences"):
        pardec.tune(model, "classes", out=tmp_path / "tune")
    with pytest.raises(ModelError, match="draws token maps, whose forwards are not timed in parts"):
        next(iter(bench(model)))
