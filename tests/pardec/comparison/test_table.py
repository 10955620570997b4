"""The table's formats and its frontier, on a handmade run."""

from __future__ import annotations

import csv
import html
import io
import json
import random
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from pardec.comparison import Run, Table
from pardec.comparison.figure import GAINS, figure, frontier
from pardec.comparison.report.columns import log_ticks
from pardec.comparison.report.finding import finding
from pardec.comparison.table import _SHORT, FIELDS
from pardec.models.errors import PardecError, SpecError

ALONE = {"seconds": 1.0, "rows": 1, "forwards": 5, "padding": 0, "waits": None}


def line(sampler: str, task: str, index: int, **fields: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "key": f"{sampler}/{task}/{index}",
        "sampler": sampler,
        "spec": f"{sampler}:full",
        "exact": "relaxed",
        "seed": 0,
        "task": task,
        "problem": f"p{index}",
        "index": index,
        "reference": sampler == "ref",
        "text": "x",
        "tokens": [7, 3],
        "finish": "stop",
        "generated": 10,
        "nfe": 5,
        "nfe_to_end": 4,
        "tokens_fed": 50,
        "score": 1.0,
        "lenient": 1.0,
        "steps": [0, 3],
        "scores": [0.5, None],
        "seconds": 1.0,
        "batch": {"id": f"{sampler}{task}{index}", **ALONE},
        "peak_memory": 8,
        "device": "cpu",
        "dtype": "float32",
        "error": None,
    }
    return base | fields


def entry(sampler: str, **more: Any) -> dict[str, Any]:
    base = {"sampler": sampler, "spec": f"{sampler}:full", "exact": "relaxed", "reference": False}
    return {**base, "floor": "ref", "baseline": "slow", **more}


@pytest.fixture
def run() -> Run:
    """`slow`: 10 tokens per second, all answers right. `fast`: 40 a second, half of them right, one row failed."""
    rows = [line("slow", task, index) for task in "ab" for index in range(2)]
    quick = {"seconds": 0.25, "nfe": 2, "tokens": [9, 3], "score": 0.0, "lenient": 0.5}
    for task in "ab":
        batch = {**ALONE, "id": f"f{task}", "seconds": 0.25}
        rows.append(line("fast", task, 0, **quick, batch=batch))
    rows.append(line("fast", "a", 1, nfe=4, batch={**ALONE, "id": "fa1", "seconds": 0.25}))
    figures = ("text", "tokens", "generated", "nfe", "nfe_to_end", "tokens_fed", "score", "lenient", "batch")
    rows.append(line("fast", "b", 1, **dict.fromkeys(figures), error="MemoryError: no | room"))
    rows += [line("ref", task, index, nfe=1) for task in "ab" for index in range(2)]
    samplers = [entry("slow"), entry("fast"), entry("ref", reference=True, floor=None, baseline=None), entry("never")]
    tasks = [{"name": "a"}, {"name": "b"}]
    return Run({"samplers": samplers, "tasks": tasks, "notes": ["a note"]}, {"torch": "1"}, rows, {})


def test_every_figure_of_the_run(run: Run) -> None:
    slow, fast, never = Table(run).rows
    assert tuple(slow) == FIELDS
    assert [slow[n] for n in ("problems", "seeds", "failed", "error", "accuracy", "nfe")] == [4, 1, 0, None, 1.0, 5.0]
    assert (slow["tokens_per_second"], slow["speed_up"], slow["floor_share"]) == (10.0, 1.0, 0.2)
    assert (slow["agreement"], slow["identical"]) == (1.0, 1.0)
    assert [fast[n] for n in ("problems", "failed", "error")] == [4, 1, "MemoryError: no | room"]
    assert fast["accuracy"] == 0.25  # right, wrong, wrong, failed
    assert fast["lenient"] == 0.5  # (1 + 0.5 + 0.5 + 0) / 4
    assert (fast["nfe"], fast["floor_share"]) == (pytest.approx(8 / 3), pytest.approx(3 / 8))
    assert (fast["tokens_per_second"], fast["speed_up"]) == (40.0, 4.0)
    assert (fast["agreement"], fast["identical"]) == (pytest.approx((0.5 + 0.5 + 1) / 3), pytest.approx(1 / 3))
    assert fast["by_task"]["a"]["accuracy"] == 0.5
    assert (fast["by_task"]["a"]["nfe"], fast["by_task"]["b"]["problems"]) == (3.0, 2)
    assert (never["problems"], never["failed"], never["accuracy"], never["speed_up"]) == (0, 0, None, None)


def test_notes_tell_failures_and_several_machines(run: Run) -> None:
    assert Table(run).notes == ["a note", "fast: 1 rows failed, most often with MemoryError: no | room"]
    run.rows[0]["device"] = "cuda"
    run.rows[1]["dtype"] = "bfloat16"
    assert Table(run).notes[2:] == [
        "rows were made with several devices; speeds are those of cpu",
        "rows were made with several dtypes; there are rows of float32 and bfloat16",
    ]


def test_formats_say_the_same_and_are_written(run: Run, tmp_path: Path) -> None:
    table = Table(run)
    document = json.loads(table.to_json(tmp_path / "t.json"))
    assert set(document) == {"config", "environment", "notes", "rows"}
    assert document["rows"] == table.rows
    assert json.loads((tmp_path / "t.json").read_text()) == document
    lines = list(csv.DictReader(io.StringIO(table.to_csv(tmp_path / "t.csv"))))
    assert [float(line["nfe"]) if line["nfe"] else None for line in lines] == [row["nfe"] for row in table.rows]
    assert lines[1]["accuracy[a]"] == "0.5"
    assert set(FIELDS[:-2]) <= set(lines[0])
    text = table.to_markdown(tmp_path / "t.md")
    shown = [row.split("|") for row in text.splitlines() if row.startswith("|")]
    assert {len(cells) for cells in shown} == {len(shown[0])}
    assert [cells[1].strip() for cells in shown[2:]] == ["`slow`", "`fast`", "`never`"]
    assert "- fast: 1 rows failed" in text
    assert (tmp_path / "t.md").read_text() == text == repr(table)
    page = table.to_html(tmp_path / "t.html")
    assert page == table._repr_html_()
    assert page.count("<tr>") == 4


def test_latex_has_the_cells_of_the_table(run: Run, tmp_path: Path) -> None:
    table = Table(run)
    text = table.to_latex(tmp_path / "t.tex")
    assert (tmp_path / "t.tex").read_text() == text
    lines = text.splitlines()
    cells = table.cells(mark="")
    assert lines[0] == f"\\begin{{tabular}}{{l{'r' * (len(cells[0]) - 1)}}}"
    assert [line for line in lines if not line.endswith(r" \\")] == [
        lines[0], r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip
    shown = [line.removesuffix(r" \\").split(" & ") for line in lines if line.endswith(r" \\")]
    plain = [[cell.replace("\\", "").replace("--", "..") for cell in line] for line in shown]
    assert plain == cells
    assert re.search(r"(?<!\\)[%&#$_]", text.replace(" & ", " ")) is None
    assert "%" in text
    table.rows[0]["sampler"] = r"a_b\c{d}~^<>#$&"
    assert r"a\_b\textbackslash{}c\{d\}\textasciitilde{}\textasciicircum{}\textless{}\textgreater{}\#\$\&" in (
        table.to_latex()
    )


NAMES = ("sequential+eos", "credit+localleap:relaxed=0.75,radius=4+eos@dual", "threshold:tau=0.95+eos")


@pytest.mark.parametrize("width", [60, 80, 120, 400])
def test_a_terminal_of_any_width_shows_every_figure_and_every_name_whole(run: Run, width: int) -> None:
    renamed = dict(zip(("slow", "fast", "never"), NAMES, strict=True))
    for values in (*run.rows, *run.config["samplers"]):
        values["sampler"] = renamed.get(values["sampler"], values["sampler"])
        values["baseline"] = renamed.get(values.get("baseline", ""))
    table = Table(run)
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    lines = console.export_text().splitlines()
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert "…" not in text
    head, *body = table.cells(mark="")
    for cell in {cell for line in body for cell in line if cell}:
        assert cell in text
    figures = [cell.strip() for line in lines if line.startswith("│") for cell in line.strip("│").split("│")]
    for name in head[2:]:  # each sampler's figures stand in its own line, in order
        assert all(line[head.index(name)] in figures for line in body)
    for name, meaning in table.legend().items():
        assert (
            f"{name}: {meaning}".split()
            == " ".join(text[text.index(f"{name}: {meaning[:12]}") :].split()).split()[
                : len(f"{name}: {meaning}".split())
            ]
        )


def test_every_column_is_told_where_it_is_shown_and_no_other(run: Run) -> None:
    table = Table(run)
    head = table.cells()[0]
    assert list(table.legend()) == head
    assert "identical" not in head
    text, page = table.to_markdown(), table.to_html()
    for name, meaning in table.legend().items():
        assert meaning
        assert f"\n- {name}: {meaning}" in text
        assert f'<th title="{html.escape(meaning)}">{name}</th>' in page
        assert f"<dt>{name}</dt><dd>{html.escape(meaning)}</dd>" in page
    assert "- identical:" not in text
    assert "<dt>identical</dt>" not in page
    assert all(short.meaning for short in _SHORT)


def test_speed_stands_beside_forwards(run: Run) -> None:
    """Fewer forwards need not be faster; the text states that 2.67 forwards instead of 5 are 4 times as fast."""
    head = Table(run).cells()[0]
    assert [head[head.index("forwards") + at] for at in (1, 2)] == ["tokens/s", "speed-up"]
    rows = Table(run).rows
    rows[1] |= {"failed": 0, "accuracy": 1.0}
    assert finding(rows[:2]) == (
        "`fast` takes 2.67 forwards per problem where `slow` takes 5, at 4× its tokens per second, with the same "
        "accuracy of 100%."
    )
    rows[1] |= {"tokens_per_second": 9.5}
    assert "at 0.95× its tokens per second" in finding(rows[:2])


def test_tables_are_data_frames_where_pandas_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    table = Table(run)
    frame = table.to_pandas()
    assert list(frame.columns) == table.to_csv().splitlines()[0].split(",")
    assert list(frame["sampler"]) == ["slow", "fast", "never"]
    assert frame["nfe"][0] == 5.0
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PardecError, match="needs pandas") as caught:
        table.to_pandas()
    assert "[pandas]" in str(caught.value.hint)


def test_a_figure_is_svg_or_pdf_with_the_same_points_and_a_key(run: Run, tmp_path: Path) -> None:
    table = Table(run)
    svg = ElementTree.fromstring(table.plot(tmp_path / "f.svg").read_text())
    circles = [element.attrib for element in svg.iter() if element.tag.endswith("circle")]
    texts = [element.text or "" for element in svg.iter() if element.tag.endswith("text")]
    assert len(circles) == sum(row["nfe"] is not None and row["accuracy"] is not None for row in table.rows) == 2
    filled = {float(each["cx"]) for each in circles if each["fill"] != "white"}
    best = {row["sampler"] for row in table.frontier()}
    assert len(filled) == len(best)
    slow, fast = (float(each["cx"]) for each in circles)
    assert fast < slow  # it takes fewer forwards
    assert {"1  slow", "2  fast"} <= set(texts)
    pdf = table.plot(tmp_path / "new" / "f.pdf").read_bytes()
    start = int(pdf.split(b"startxref\n")[1].split()[0])
    assert pdf[start:].startswith(b"xref\n0 6\n")
    for number, line in enumerate(pdf[start:].splitlines()[3:8], 1):
        assert pdf[int(line.split()[0]) :].startswith(b"%d 0 obj\n" % number)
    stream = pdf.split(b"stream\n", 1)[1].split(b"\nendstream")[0]
    assert int(pdf.split(b"/Length ")[1].split()[0]) == len(stream)
    assert stream.count(b" b\n") + stream.endswith(b" b") == len(circles)
    shown = [
        text.decode("cp1252").replace("\\(", "(").replace("\\)", ")") for text in re.findall(rb"\((.*)\) Tj", stream)
    ]
    assert shown == texts
    for name, path, message in (("accuracies", "f.svg", "no column 'accuracies'"), ("nfe", "f.png", "SVG or PDF")):
        with pytest.raises(SpecError, match=message):
            table.plot(tmp_path / path, cost=name)


@pytest.mark.parametrize("cost", ["nfe", "tokens_per_second"])
def test_the_frontier_of_a_figure_has_the_quality_of_the_cheaper_point(cost: str) -> None:
    ends = ((5, 0.6), (10, 0.9)) if cost == "nfe" else ((5, 0.9), (10, 0.6))
    rows = [{"sampler": str(at), cost: each[0], "accuracy": each[1]} for at, each in enumerate(ends)]
    [line] = [part for part in figure(rows, cost, "accuracy", False).parts if part[0] == "line" and part[4]]
    first, middle, last = line[1]
    assert first[0] < last[0]
    assert middle == ((last[0], first[1]) if cost == "nfe" else (first[0], last[1]))


def test_ticks_of_a_logarithmic_axis_are_round_and_enough() -> None:
    for low, high in ((1.1, 1.3), (2, 9), (3, 60), (0.02, 7), (1, 90000)):
        found = log_ticks(low, high)
        assert 2 < len(found) < 10
        assert found == sorted(set(found))
        assert low <= found[0]
        assert found[-1] <= high
    assert log_ticks(3, 60) == [5, 10, 20, 50]


# --- the frontier ---


def point(name: str, **figures: Any) -> dict[str, Any]:
    return {"sampler": name, "nfe": None, "accuracy": None, "tokens_per_second": None, **figures}


def test_the_frontier_by_hand() -> None:
    rows = [
        point("slow", nfe=64, accuracy=0.9, tokens_per_second=10.0),
        point("good", nfe=8, accuracy=0.9, tokens_per_second=80.0),
        point("fast", nfe=2, accuracy=0.5, tokens_per_second=300.0),
        point("bad", nfe=8, accuracy=0.4, tokens_per_second=70.0),
        point("twin", nfe=2, accuracy=0.5, tokens_per_second=200.0),
        point("failed", accuracy=None),
    ]
    assert [row["sampler"] for row in frontier(rows, "nfe", "accuracy")] == ["fast", "twin", "good"]
    assert [row["sampler"] for row in frontier(rows, "tokens_per_second", "accuracy")] == ["fast", "good"]
    assert frontier([], "nfe", "accuracy") == []


@pytest.mark.parametrize("seed", range(5))
def test_the_frontier_is_what_nothing_dominates(seed: int) -> None:
    rng = random.Random(seed)
    rows = [point(str(i), nfe=rng.randint(1, 6), accuracy=rng.randint(0, 5) / 5) for i in range(30)]
    best = {row["sampler"] for row in frontier(rows, "nfe", "accuracy")}
    for row in rows:
        beaten = any(
            other["nfe"] <= row["nfe"]
            and other["accuracy"] >= row["accuracy"]
            and (other["nfe"], other["accuracy"]) != (row["nfe"], row["accuracy"])
            for other in rows
        )
        assert (row["sampler"] in best) != beaten


def test_a_column_that_is_no_figure_is_refused(run: Run) -> None:
    with pytest.raises(SpecError, match="did you mean 'accuracy'"):
        Table(run).frontier(quality="acuracy")
    with pytest.raises(SpecError, match="no column 'sampler' has numbers"):
        Table(run).frontier(cost="sampler")
    assert set(GAINS) <= set(FIELDS)
