"""The settings that a sweep decodes: each method's unset quality parameter, and the reference curves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pardec
from pardec.comparison import preview
from pardec.comparison.sweep import curves, settings
from pardec.samplers import registry


def named(specs: list[str], family: str = "masked") -> dict[str, tuple[str | None, str | None, int]]:
    return {
        curve.name: (curve.parameter, curve.reference, len(curve.samplers))
        for curve in curves(specs, family)  # type: ignore[arg-type]
    }


def test_a_method_is_swept_over_its_own_parameter_or_the_thresholds() -> None:
    found = named(["klass", "credit", "fixed+prophet", "threshold:tau=0.9+localleap", "sequential"])
    assert found["klass"] == ("klass.tau", "threshold", 7)
    assert found["credit"] == ("threshold.tau", "threshold", 10)
    assert found["fixed+prophet"][0] == "fixed.steps"
    assert found["threshold:tau=0.9+localleap"] == (None, "threshold", 1)
    assert found["sequential"] == (None, "threshold", 1)


def test_threshold_and_the_fixed_schedule_are_always_there() -> None:
    found = named(["klass"])
    assert set(found) == {"klass", "threshold", "fixed"}
    assert found["threshold"][1] is None
    assert set(named(["klass+eos"])) == {"klass+eos", "threshold+eos", "fixed+eos"}


def test_an_acceptance_is_judged_against_its_drafter_and_vectors_against_mar() -> None:
    assert named(["sjd+lantern"], "ar") == {"sjd+lantern": ("lantern.delta", "sjd", 5), "sjd": (None, None, 1)}
    assert named(["cspd:steps=16"], "continuous")["cspd:steps=16"][1] == "mar:steps=16"
    swept = named(["cspd:draft=x"], "continuous")
    assert swept == {"cspd:draft=x": ("cspd.steps", "mar", 4), "mar": ("mar.steps", None, 4)}


def test_few_points_keep_both_ends_of_every_curve() -> None:
    few = {curve.name: curve for curve in curves(["klass", "fixed"], "masked", points=3)}
    assert few["klass"].samplers == ("klass:tau=0.98", "klass:tau=0.8", "klass:tau=0.5")
    assert few["threshold"].samplers == ("threshold:tau=0.98", "threshold:tau=0.8", "threshold:tau=0.5")
    assert len(few["fixed"].samplers) == 3
    assert curves(["klass"], "masked", points=20) == curves(["klass"], "masked")


@pytest.mark.parametrize("given", [{"sweep": True, "points": 1}, {"points": 5}])
def test_points_are_two_at_least_and_of_a_sweep(given: dict[str, Any]) -> None:
    with pytest.raises(pardec.SpecError, match="points"):
        preview("tiny-dream", "arithmetic", ["klass"], **given)


def test_a_preset_stays_one_point() -> None:
    name = next(preset.name for preset in registry.presets() if preset.spec.startswith("fixed"))
    assert named([f"preset:{name}"])[f"preset:{name}"] == (None, "threshold", 1)


def test_no_setting_is_decoded_twice() -> None:
    specs = settings(curves(["threshold", "threshold:tau=0.9", "threshold:tau=0.90,fall=0"], "masked"), "masked")
    full = [str(registry.resolve(spec, "masked").spec) for spec in specs]
    assert len(full) == len(set(full))


def test_every_quality_parameter_belongs_to_its_method_and_resolves() -> None:
    swept = [card for card in registry.cards() if card.make.quality_grid]
    assert len(swept) > 15
    for card in swept:
        if card.name == "denoise":  # goes with renoise, which has the same parameters
            continue
        spec = {"judge": "lookup+judge:head=tiny-llama", "reflective": "lookup+reflective", "fly": "lookup+fly"}.get(
            card.name, card.name
        )
        (curve,) = [curve for curve in curves([spec], card.family) if curve.name == spec]
        assert (curve.parameter or "").startswith(f"{card.name}.")
        assert len(curve.samplers) >= 4, card.name


def test_a_run_reports_its_curves_in_every_format(
    small: Callable[..., pardec.Table], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = small(samplers=("klass",), sweep=True, points=3, out=tmp_path / "run", replays=0)
    (task,) = table.curves
    assert [curve["name"] for curve in task["curves"]] == ["klass", "threshold", "fixed"]
    threshold = task["curves"][1]
    assert threshold["ratio"] is None
    assert [point["nfe"] for point in threshold["points"]] == sorted(point["nfe"] for point in threshold["points"])
    for curve in task["curves"]:
        for point in curve["points"]:
            row = next(row for row in table.rows if row["sampler"] == point["sampler"])
            scored = [r for r in table.run.rows if r["sampler"] == point["sampler"] and r["score"] is not None]
            assert point["accuracy"] == pytest.approx(row["accuracy"])
            assert point["nfe"] == pytest.approx(sum(r["nfe"] for r in scored) / len(scored))
    assert json.loads(table.to_json())["curves"][0]["task"] == task["task"]
    assert "| `klass`" in table.to_markdown().split("Curves of")[1]
    page = (tmp_path / "run" / "report.html").read_text()
    assert 'id="curves"' in page
    assert page.count('class="curve own"') == 3
    assert "--sweep" in page
    again = small(samplers=("klass",), sweep=True, points=3, out=tmp_path / "run", resume=True, replays=0)
    assert again.curves == table.curves


def test_a_run_without_a_sweep_has_no_curves(small: Callable[..., pardec.Table]) -> None:
    table = small(samplers=("threshold",), references=False)
    assert table.curves == []
    assert "curves" not in table.document()
    assert "Curves" not in table.to_markdown()


def test_a_preview_lists_the_settings_of_a_sweep() -> None:
    document = preview("tiny-dream", "arithmetic", ["entropy_bound"], limit=2, references=False, sweep=True)
    assert len(document["samplers"]) == 6 + 10 + 5
