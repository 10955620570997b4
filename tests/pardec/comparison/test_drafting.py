"""The figures of the verify loop, on handmade rows and on a run of the embedded autoregressive model."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path
from typing import Any

import pytest

import pardec
from pardec.comparison import Run, Table, metrics
from pardec.comparison.notes import broken
from pardec.comparison.report import page
from pardec.io.jsonl import RowsFile
from pardec.models.errors import SpecError
from tests.pardec.browser import browser

MODEL = "model:name=tiny-llama-draft,k=3"


def row(index: int = 0, **fields: Any) -> dict[str, Any]:
    """A finished row of the verify loop: rounds that gain 1 (the prompt's), 3, 1 and 2 tokens, the last one the end.

    In its last round both tokens of the draft after the end token were accepted, too.
    """
    base: dict[str, Any] = {
        "sampler": "s",
        "task": "t",
        "index": index,
        "seed": 0,
        "error": None,
        "tokens": [9, 4, 5, 6, 7, 8, 3],
        "steps": [0, 1, 1, 1, 2, 3, 3],
        "scores": [0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5],
        "generated": 6,
        "nfe": 4,
        "tokens_fed": 20,
        "drafted": [0, 3, 4, 4],
        "accepted": [0, 2, 0, 4],
        "draft_forwards": 8,
        "cost_ratio": 0.25,
        "deviation": None,
        "batch": {"id": f"b{index}", "seconds": 1.0, "rows": 1, "forwards": 4, "padding": 5, "waits": None},
    }
    return base | fields


OTHER = row(1, drafted=[0, 1, 0], accepted=[0, 1, 0], steps=[0, 1, 1, 2], tokens=[9, 4, 5, 6], nfe=3, draft_forwards=2)
FAILED = {**dict.fromkeys(row()), "task": "t", "index": 2, "seed": 0, "error": "E: x"}
MASKED = row(3, drafted=None, accepted=None, draft_forwards=None, cost_ratio=None)


def test_rounds_by_hand() -> None:
    # The prompt's round is left out, and so is what was drafted after the end token.
    assert metrics.rounds([row(), OTHER, FAILED, MASKED]) == [(3, 2, 3), (4, 0, 1), (2, 2, 2), (1, 1, 2), (0, 0, 1)]
    # One token of the second round had no alternative, and the one of the third: nothing is left of that.
    forced = row(forced=[0, 1, 1, 0], drafted=[0, 2, 0, 4], accepted=[0, 1, 0, 4])
    assert metrics.rounds([forced]) == [(2, 1, 2), (2, 2, 2)]


def test_figures_by_hand() -> None:
    rows = [row(), OTHER, FAILED]
    figures = {name: figure(rows) for name, figure in metrics.FIGURES.items() if name in metrics.DRAFTING}
    assert figures == {
        "forwards_per_token": pytest.approx((4 + 3) / (6 + 6)),
        "acceptance_length": pytest.approx((3 + 1 + 2 + 2 + 1) / 5),
        "draft_depth": pytest.approx((3 + 4 + 2 + 1 + 0) / 5),
        "draft_forwards": pytest.approx((8 + 2) / 2),
        "deviation": None,
        "deviation_per_token": None,
        "padding": pytest.approx((5 + 5) / (5 + 5 + 20 + 20)),
    }
    assert metrics.by_position(rows) == [(3, 4), (2, 3), (0, 2), (0, 1)]
    for nothing in ([], [FAILED], [MASKED]):
        assert {metrics.FIGURES[name](nothing) for name in metrics.DRAFTING} == {None}
        assert metrics.by_position(nothing) == []


def test_a_deviation_is_summed_a_problem_and_spread_over_the_tokens() -> None:
    rows = [row(deviation=1.5), row(1, deviation=0.0, generated=4), row(2, deviation=None)]
    assert metrics.FIGURES["deviation"](rows) == 0.75
    assert metrics.FIGURES["deviation_per_token"](rows) == pytest.approx(1.5 / (6 + 4))


def test_padding_counts_a_batch_once_and_whole_ones_only() -> None:
    shared = {"id": "b", "seconds": 1.0, "rows": 2, "padding": 10}
    early = {**shared, "seconds": 0.5, "padding": 4}  # what it had by the time that the first row left
    rows = [row(0, batch=early), row(1, batch=shared), row(2, batch={**shared, "id": "half"})]
    assert metrics.padding(rows) == pytest.approx(10 / (10 + 40))


@pytest.mark.parametrize(
    ("arguments", "cost", "speed_up"),
    [
        (None, 0.25, 9 / (10 * 0.25 + 5)),  # nine tokens in five rounds, with ten forwards of the drafter
        (0.0, 0.0, 9 / 5),
        (1.0, 1.0, 9 / 15),
    ],
)
def test_the_simulated_speed_up_by_hand(arguments: float | None, cost: float, speed_up: float) -> None:
    figures = metrics.simulated([row(), OTHER, FAILED], arguments)
    assert figures == {"cost_ratio": cost, "simulated_speed_up": pytest.approx(speed_up)}


def test_a_drafter_without_a_model_is_free_and_an_unknown_cost_is_no_speed_up() -> None:
    unknown = [row(cost_ratio=None)]
    assert metrics.simulated(unknown, None) == {"cost_ratio": None, "simulated_speed_up": None}
    assert metrics.simulated(unknown, 0.5)["simulated_speed_up"] == pytest.approx(6 / (8 * 0.5 + 3))
    free = {"cost_ratio": 0.0, "simulated_speed_up": 2.0}  # six tokens in three rounds
    assert metrics.simulated([row(draft_forwards=0, cost_ratio=None)], None) == free
    assert metrics.simulated([row(draft_forwards=0)], 0.5) == free
    assert metrics.simulated([MASKED, FAILED], 0.5) == {"cost_ratio": None, "simulated_speed_up": None}


def test_a_mismatch_at_a_tie_is_told_from_one_that_is_none() -> None:
    known = [row(index) for index in range(5)]
    tied = row(1, tokens=[9, 4, 1, 1, 1, 1, 3], scores=[0.9, 0.8, 0.69994, 0.1, 0.1, 0.1, 0.1])
    wrong = row(2, tokens=[9, 4, 5, 1, 1, 1, 3], scores=[0.9, 0.8, 0.7, 0.5999, 0.5, 0.5, 0.5])
    # So unlikely a token's probability has few digits: what they cannot tell apart may be a tie.
    rare = row(4, tokens=[1, 4, 5, 6, 7, 8, 3], scores=[0.01234, *[0.5] * 6])
    known[4]["scores"] = [0.01235, *[0.5] * 6]
    short = row(3, tokens=[9, 4], scores=[0.9, 0.8])
    assert metrics.mismatches([row(), tied, wrong, short, rare, FAILED], known) == {"mismatches": 4, "ties": 2}
    assert metrics.mismatches([row()], None) == {"mismatches": None, "ties": 0}
    masked = {**MASKED, "index": 1, "tokens": [1]}
    assert metrics.mismatches([masked], known) == {"mismatches": 1, "ties": None}


# --- a run ---


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the embedded model with three drafters."""
    out = tmp_path_factory.mktemp("drafting") / "run"
    specs = ["sequential", "lookup", MODEL]
    more: dict[str, Any] = {"limit": 3, "batch_size": 2, "max_new_tokens": 32, "device": "cpu", "progress": False}
    pardec.compare("tiny-llama", ["lists", "records"], specs, out=out, **more)
    return out


@pytest.fixture
def run(home: Path) -> Run:
    return Run.load(home)


def test_rows_and_figures_are_those_of_generate(run: Run) -> None:
    model = pardec.load("tiny-llama", device="cpu")
    figures = Table(run).rows[2]
    texts = [problem.prompt for name in ("lists", "records") for problem in pardec.task(name).problems(n=3)]
    result = model.generate(texts, sampler=MODEL, max_new_tokens=32)
    mine = [row for row in run.rows if row["sampler"] == MODEL]
    order = {(row["task"], row["index"]): row for row in mine}
    for at, entry in enumerate(order[task, index] for task in ("lists", "records") for index in range(3)):
        assert entry["drafted"] == list(result.trace.drafted[at])
        assert entry["accepted"] == list(result.trace.accepted[at])
        assert entry["draft_forwards"] == result.draft_forwards[at]
        assert entry["deviation"] is None
    assert figures["acceptance_length"] == pytest.approx(result.acceptance_length)
    assert 1 < figures["acceptance_length"] <= 4
    assert figures["forwards_per_token"] == pytest.approx(1 / result.tokens_per_forward)
    sizes = {"tiny-llama": model.language_model.parameters}
    sizes["tiny-llama-draft"] = pardec.load("tiny-llama-draft", device="cpu").language_model.parameters
    assert figures["cost_ratio"] == pytest.approx(sizes["tiny-llama-draft"] / sizes["tiny-llama"])
    assert (figures["identical"], figures["mismatches"], figures["ties"]) == (1.0, 0, 0)
    assert len(figures["acceptance_by_position"]) == 3


def test_plain_decoding_gains_one_token_a_round_and_drafts_none(run: Run) -> None:
    figures = Table(run).rows[0]
    kept = ("acceptance_length", "draft_depth", "draft_forwards", "simulated_speed_up", "cost_ratio", "speed_up")
    assert {name: figures[name] for name in kept} == dict(zip(kept, (1.0, 0.0, 0.0, 1.0, 0.0, 1.0), strict=True))
    assert figures["acceptance_by_position"] is None


def test_every_format_has_what_drafting_comes_to(run: Run) -> None:
    table = Table(run)
    heads, *lines = table.cells(mark="")
    shown = dict(zip(heads, lines[2], strict=True))
    assert shown["acceptance length"] == f"{table.rows[2]['acceptance_length']:.2f}"
    assert shown["identical"] == "100.0%"
    assert "deviation" not in shown
    entry = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert float(entry[2]["acceptance[3]"]) == table.rows[2]["acceptance_by_position"][2]
    assert entry[0]["acceptance[1]"] == ""
    assert entry[2]["acceptance_length[lists]"] == str(table.rows[2]["by_task"]["lists"]["acceptance_length"])
    assert [note for note in table.notes if "simulated" in note] == [
        f"{MODEL}: the simulated speed-up counts a forward of the drafter as 0.255, from the sizes of drafter and model"
    ]


def test_another_cost_ratio_makes_another_table_of_the_same_rows(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(home, out)
    rows = (out / "rows.jsonl").read_bytes()
    more: dict[str, Any] = {"limit": 3, "batch_size": 2, "max_new_tokens": 32, "device": "cpu", "progress": False}
    tasks = ["lists", "records"]
    table = pardec.compare(
        "tiny-llama", tasks, ["sequential", "lookup", MODEL], out=out, resume=True, cost_ratio=1.0, **more
    )
    figures = table.rows[2]
    mine = [row for row in RowsFile(out / "rows.jsonl").rows.values() if row["sampler"] == MODEL]
    gained = sum(step > 0 for row in mine for step in row["steps"])
    spent = sum(row["draft_forwards"] + len(row["accepted"]) - 1 for row in mine)
    assert (figures["cost_ratio"], figures["simulated_speed_up"]) == (1.0, pytest.approx(gained / spent))
    assert (out / "rows.jsonl").read_bytes() == rows
    assert table.notes == [f"{MODEL}: the simulated speed-up counts a forward of the drafter as 1, as requested"]
    assert "  --cost-ratio 1.0 " in page(Run.load(out))


@pytest.mark.parametrize("wrong", [-0.1, float("inf"), float("nan")])
def test_a_cost_ratio_that_cannot_be_is_refused(wrong: float) -> None:
    with pytest.raises(SpecError, match="cost_ratio must be at least 0"):
        pardec.compare("tiny-llama", "lists", ["lookup"], cost_ratio=wrong)


def test_a_broken_promise_is_told(run: Run) -> None:
    mine = [row for row in run.rows if row["sampler"] == "lookup"]
    mine[0]["tokens"] = [*mine[0]["tokens"][:-1], 1]
    mine[0]["scores"] = [*mine[0]["scores"][:-1], 0.0]
    table = Table(run)
    assert broken(table.rows[1])
    assert table.rows[1]["identical"] == pytest.approx(5 / 6)
    text = "lookup: promises the tokens of sequential decoding and gave others in 1 of 6 decodes, 0 of them at a tie"
    assert any(text in note for note in table.notes)
    assert "83.3% (!)" in table.to_markdown()
    shown = page(run)
    assert "✗ not kept" in shown
    assert text in shown
    # A difference at a tie is noted too, but breaks no promise.
    mine[0]["scores"] = next(row for row in run.rows if row["sampler"] == "sequential" and _same(row, mine[0]))[
        "scores"
    ]
    table = Table(run)
    assert (table.rows[1]["mismatches"], table.rows[1]["ties"]) == (1, 1)
    assert not broken(table.rows[1])
    assert any("1 of them at a tie" in note for note in table.notes)
    assert "not kept</span>" not in page(run)


def test_a_relaxed_acceptance_tells_its_deviation_or_that_none_is_known(run: Run) -> None:
    for row in run.rows:
        if row["sampler"] in ("lookup", MODEL):
            row |= {"exact": "relaxed", "deviation": 0.5 if row["sampler"] == MODEL else None}
    table = Table(run)
    shown = [dict(zip(table.cells()[0], line, strict=True))["deviation"] for line in table.cells()[1:]]
    assert shown == ["", "none known", "0.500"]
    assert "lookup: relaxed, and how far its distribution is from the model's is not known" in table.notes


def test_the_deviation_of_a_real_relaxed_run() -> None:
    specs = [f"{MODEL}+typical", MODEL]
    more: dict[str, Any] = {"limit": 2, "temperature": 1.0, "max_new_tokens": 16, "progress": False}
    relaxed, exact = pardec.compare("tiny-llama", "lists", specs, device="cpu", **more).rows
    assert relaxed["deviation"] is not None
    assert exact["deviation"] is None


def test_the_report_in_a_browser(run: Run, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(page(run), encoding="utf-8")
    table = Table(run).rows
    with browser() as show:
        view = show((tmp_path / "report.html").as_uri())
        lines = view.locator("#accepted tbody tr")
        cells = lines.last.locator("td[title]")
        assert lines.count() == 2  # plain decoding drafts nothing
        wanted = [str(round(100 * share)) for share in table[2]["acceptance_by_position"]]
        assert cells.all_inner_texts() == wanted
        assert "rounds" in (cells.first.get_attribute("title") or "")
        view.locator('#results th[data-key="acceptance_length"] button').click()
        names = view.locator("#results tbody th .named code").all_text_contents()
        assert names == [row["sampler"] for row in sorted(table, key=lambda row: -row["acceptance_length"])]
        width = view.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width[0] <= width[1]


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return (one["task"], one["index"]) == (other["task"], other["index"])
