"""Simulations of real runs: tokens equal the run's, times follow from its rounds, exits from whole forwards."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import pardec
from pardec.cli import run as command
from pardec.models.errors import SpecError
from pardec.models.plan import Plan
from pardec.simulation import Machine, simulate
from pardec.simulation.report import document, page
from pardec.simulation.run import Report
from pardec.simulation.setting import rounds
from tests.pardec.simulation import test_schedules as schedules
from tests.pardec.simulation.timelines import violations

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/two_gpus.toml"
DRAFT = "model:name=tiny-llama-draft,k=4"


@cache
def model() -> pardec.Model:
    return pardec.load("tiny-llama", device="cpu")


@cache
def prompts(count: int = 3) -> list[str]:
    return [problem.prompt for problem in pardec.task("records").problems(split="heldout", n=count, seed=7)]


def machine(target: float = 1.0, draft: float = 0.25, layers: Mapping[str, int] | None = None) -> Machine:
    devices = {"a": {"target": {"layer": target}}, "b": {"draft": {"layer": draft}}}
    links = [{"between": ["a", "b"]}]
    roles = {"target": "a", "draft": "b"}
    return Machine.of({"roles": roles, "devices": devices, "links": links, "layers": layers or {}})


def simulated(spec: str, *schedules: str, where: Any = None, **more: Any) -> Report:
    where = machine() if where is None else where
    return simulate(model(), prompts(), sampler=spec, machine=where, schedules=schedules, max_new_tokens=24, **more)


@pytest.mark.parametrize(
    "spec", [DRAFT, f"{DRAFT}+beam:beams=3,nodes=8", "eagle:name=tiny-llama-eagle,k=3", "lookup:k=4", "sequential"]
)
def test_rounds_have_the_tokens_of_the_run(spec: str) -> None:
    report = simulated(spec)
    assert report.result.tokens == model().generate(prompts(), sampler=spec, max_new_tokens=24).tokens
    real = sum(map(len, report.result.tokens))
    for each in report.simulations:
        assert each.tokens == real - len(prompts())  # each row's first is of its prompt's forward
        assert violations(each.timeline) == []
        assert each.tokens_per_second == pytest.approx(each.tokens / each.seconds)
    for row, drafting in zip(rounds(report.result), report.result.draft_forwards or [0] * 3, strict=True):
        assert sum(each.forwards for each in row) == pytest.approx(drafting)
        assert all(each.accepted <= each.depth and each.gained <= each.accepted + 1 for each in row)
    plain = report.of("plain")
    assert plain.rounds == sum(report.result.nfe) - len(prompts())
    runs = sum(report.result.draft_forwards or ())
    each_draft = 0.25 * report.setting.draft_layers
    assert plain.seconds == pytest.approx(plain.rounds * model().language_model.layers + runs * each_draft)
    assert report.of("sequential").seconds == pytest.approx(report.of("sequential").tokens * 4)


def test_the_schedule_of_a_model_without_parallel_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    generate, specs = pardec.Model.generate, list[str]()

    def counted(self: pardec.Model, prompts: Any, **arguments: Any) -> Any:
        specs.append(arguments["sampler"])
        return generate(self, prompts, **arguments)

    monkeypatch.setattr(pardec.Model, "generate", counted)
    assert [each.schedule for each in simulated(DRAFT).simulations] == ["sequential", "plain"]
    assert specs == [DRAFT], "decoded once"
    names = [each.schedule for each in simulated(f"{DRAFT},parallel=2").simulations]
    assert names == ["sequential", "plain", "easyspec"]


def test_layers_of_a_file_stand_for_larger_models() -> None:
    own, stated = simulated(DRAFT), simulated(DRAFT, where=machine(layers={"target": 80, "draft": 16}))
    assert (stated.setting.target_layers, stated.setting.draft_layers) == (80, 16)
    assert stated.of("sequential").seconds == 20 * own.of("sequential").seconds
    assert stated.of("plain").rounds == own.of("plain").rounds


def test_exits_are_those_of_the_layers_own_states() -> None:
    """Ranks compared with whole forwards of the lower layers, one text at a time."""
    report = simulated(DRAFT, "mirror")
    network: Any = model().language_model
    for layer in range(network.layers - 1):
        for row, found in enumerate(rounds(report.result)[:2]):
            for number, each in enumerate(found):
                text = report.result.trace.tokens[row, : each.before + each.gained]
                plan = Plan.full(torch.tensor(text[:-1])[None], network.visible())
                part = Plan(**{**{n: getattr(plan, n) for n in Plan.__slots__}, "layers": slice(0, layer + 1)})
                with torch.inference_mode():
                    likely = network.forward(part).logits()[0, -1].argsort(descending=True).tolist()
                assert report.exits.ranks[layer][row][number] == likely.index(text[-1])


@pytest.mark.seeds("arXiv:2510.13161")
def test_deeper_exits_name_more_and_rollouts_hide_behind_the_upper_layers() -> None:
    """Hits rise with kappa and are frequent at the last exit; tokens are greedy; where rollouts fit into the time of
    the upper layers, a round with a hit takes the target's time alone, and mirror is faster than plain.
    """
    schedules.test_mirror_takes_the_longer_of_suffix_and_rollouts_and_drafts_again_after_a_miss(2, 2.0)
    schedules.test_an_exit_hits_below_kappa()
    report = simulated(DRAFT, "mirror", exit_layer=2, kappa=4, where=machine(target=1.0, draft=0.1))
    assert report.result.tokens == model().generate(prompts(), max_new_tokens=24).tokens
    rates = [[report.exits.at(layer, kappa).rate for kappa in (1, 2, 4, 8)] for layer in range(3)]
    assert all(rate == sorted(rate) for rate in rates)
    assert rates[2][2] > 0.9
    assert rates[2][0] > rates[0][0]
    behind = report.exits.accepted_by_rank(2, 4, rounds(report.result))
    assert behind[0] > 2
    clock, plain = report.of("mirror"), report.of("plain")
    assert violations(clock.timeline) == []
    assert clock.rounds == plain.rounds
    assert clock.seconds < 0.9 * plain.seconds
    exits = report.exits.at(2, 4)
    misses = sum(not exits.hit(row, at) for row, ranks in enumerate(exits.ranks) for at in range(len(ranks) - 1))
    again = misses + len(prompts())  # and the first draft of each row
    assert clock.seconds <= clock.rounds * 4 + again * 2 * 4 * 0.2 + 1e-9


def test_what_does_not_go_together_is_refused_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pardec.Model, "generate", lambda *_, **__: pytest.fail("decoded"))
    for spec, schedule, message in (
        (DRAFT, "jazz", "unknown schedule 'jazz'"),
        (DRAFT, "pearl", "the schedule pearl needs the drafter 'pearl', got 'model'"),
        ("lookup", "easyspec", "the schedule easyspec needs the drafter 'model'"),
        ("pearl:name=tiny-llama-draft", "mirror", "the schedule mirror cannot time the drafter 'pearl'"),
        ("earlyexit", "plain", "earlyexit drafts with the target itself"),
    ):
        with pytest.raises(SpecError, match=message):
            simulated(spec, schedule)
    with pytest.raises(SpecError, match="a layer before the last of 4, counted from 0, got 3"):
        simulated(DRAFT, "mirror", exit_layer=3)
    with pytest.raises(SpecError, match="kappa must be a number of at least 1"):
        simulated(DRAFT, "mirror", kappa=0)
    for option in ("exit_layer", "kappa"):
        with pytest.raises(SpecError, match=f"{option}=1 has no effect without the schedule mirror"):
            simulated(DRAFT, "plain", **{option: 1})
    with pytest.raises(SpecError, match="tiny-dream is not an autoregressive model"):
        simulate(pardec.load("tiny-dream", device="cpu"), "Tom", sampler="threshold", machine=machine())


# --- the command ---


def run(*more: str, spec: str = DRAFT) -> int:
    return command(["simulate", "tiny-llama", "-s", spec, "-p", prompts()[0], "-n", "24", *more])


def test_the_command_writes_a_table_json_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = tmp_path / "run.json", tmp_path / "run.html"
    more = ["--schedule", "mirror", "--schedule", "dovetail", "--json", str(files[0]), "--html", str(files[1])]
    assert run("--machine", str(EXAMPLE), *more) == 0
    told = capsys.readouterr().out
    lines = [line.split(" | ")[0] for line in told.splitlines() if line.startswith("| ")]
    assert lines[:1] + lines[2:6] == ["| schedule", "| sequential", "| plain", "| mirror", "| dovetail"]
    saved = json.loads(files[0].read_text())
    by_name = {each["schedule"]: each for each in saved["schedules"]}
    assert by_name["plain"]["speed_up_over_plain"] == 1
    assert len(saved["exits"]) == 3
    assert {"name", "device", "start", "end", "reads", "makes"} <= by_name["mirror"]["timeline"][0].keys()
    html = files[1].read_text()
    assert not re.search(r"(?:src|href)=|url\(|@import", html)
    assert html.count("<svg") == 4
    assert all(f"<h2>{name}</h2>" in html for name in by_name)


def test_a_pages_texts_are_escaped() -> None:
    report = simulated(DRAFT)
    where = Machine(**{**vars(report.machine), "name": "<b>"})
    odd = Report(**{**vars(report), "machine": where})
    assert "<b>" not in page(odd)
    assert document(odd)["machine"] == "<b>"


def test_costs_are_stated_or_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "either --machine or --measure" in capsys.readouterr().err
    assert run("--machine", str(EXAMPLE), "--measure") == 2
    assert run("--measure", spec="pearl:name=tiny-llama-draft,k=3") == 0
    assert "| pearl | " in capsys.readouterr().out
