"""The report of a comparison and the page of a result, in a browser without network: no errors, usable by keyboard."""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

import pardec
from pardec.comparison.figure import GAINS
from pardec.comparison.report import page
from pardec.comparison.report.columns import COLUMNS
from pardec.comparison.report.commands import call_arguments, python, shell
from pardec.comparison.report.finding import finding
from pardec.comparison.report.orders import acceptance, binned, commit_order
from pardec.comparison.run import Run
from pardec.comparison.table import Table
from pardec.views.document import embedded
from pardec.views.html import page as result_page
from tests.pardec.browser import browser

SAMPLERS = ["sequential", "threshold:tau=0.3", "entropy+fixed:steps=3", "threshold:tau=0.01+eos@dual"]


@pytest.fixture(scope="module")
def run(model: pardec.Model, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of a random model, with scores filled in because the model is never right, and one failed row."""
    home = tmp_path_factory.mktemp("runs") / "run"
    tasks = ["arithmetic", "lists"]
    pardec.compare(model, tasks, SAMPLERS, limit=4, batch_size=2, replays=2, max_new_tokens=12, stop_ids=[], out=home)
    made = Run.load(home)
    for row in made.rows:
        share = {"sequential": 4, SAMPLERS[1]: 3, SAMPLERS[2]: 2, SAMPLERS[3]: 1}.get(row["sampler"], 4)
        row["score"] = float(row["index"] < share)
        row["lenient"] = max(row["score"], 0.5)
    failed = next(row for row in made.rows if row["sampler"] == SAMPLERS[3] and row["index"] == 3)
    failed.update(dict.fromkeys(("score", "lenient", "nfe", "steps", "tokens", "text", "generated", "device")))
    failed["error"] = "OutOfMemory: no room for <8> rows & more"
    return made


@pytest.fixture(scope="module")
def opened(run: Run, model: pardec.Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Opens the report, or the page of a result, in a browser window, and fails on any browser error."""
    home = tmp_path_factory.mktemp("pages")
    (home / "report.html").write_text(page(run), encoding="utf-8")
    one = model.generate(["Tom has 3 cups.", "Ann"], max_new_tokens=8, sampler="sequential", stop_ids=[])
    (home / "result.html").write_text(result_page(one), encoding="utf-8")
    (home / "crowded.html").write_text(crowded(page(run)), encoding="utf-8")
    with browser() as open_page:

        def show(name: str = "report", width: int = 1280, **options: Any) -> Any:
            view = open_page((home / f"{name}.html").as_uri(), width, **options)
            if name != "result":  # the plot is drawn once the browser has told how wide it is
                view.locator("#frontier .point").first.wait_for(state="attached")
            return view

        yield show


def crowded(text: str) -> str:
    """The report with nine samplers at nearly the same point of the plot."""
    before, mark, rest = text.partition('id="data">')
    entry, end, after = rest.partition("</script>")
    data = json.loads(entry)
    first = data["plot"]["samplers"][0]
    figures = [{**first["all"], "nfe": 4 + at % 3 / 10, "accuracy": 0.9 + at % 2 / 100} for at in range(9)]
    data["plot"]["samplers"] = [{**first, "number": at + 1, "all": some} for at, some in enumerate(figures)]
    return before + mark + embedded(data) + end + after


def numbers(view: Any, column: str) -> list[float | None]:
    """The numbers of a column of the table, parsed from its visible text."""
    heads = view.locator("#results thead th button").all_inner_texts()
    at = [head.replace("\xa0", " ").replace("\n", " ").strip() for head in heads].index(column)
    texts = view.locator(f"#results tbody tr > :nth-child({at + 1})").all_inner_texts()
    result = [re.match(r"[✗ ]*([\d.,]+)", text) for text in texts]
    return [float(match[1].replace(",", "")) if match else None for match in result]


def tokens(view: Any, state: str) -> int:
    return int(view.locator(f".token.{state}").count())


# --- in a browser ---


def test_a_column_head_sorts_best_first_and_then_the_other_way(opened: Callable[..., Any], run: Run) -> None:
    view = opened()
    by_name = {row["sampler"]: row for row in Table(run).rows}
    order = lambda: view.locator("#results tbody th .named code").all_text_contents()  # noqa: E731
    assert order() == SAMPLERS
    head = view.locator('#results th[data-key="nfe"]')
    assert head.get_attribute("aria-sort") is None
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert order() == sorted(SAMPLERS, key=lambda name: by_name[name]["nfe"])
    assert numbers(view, "NFE") == sorted(numbers(view, "NFE"))
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert numbers(view, "NFE") == sorted(numbers(view, "NFE"), reverse=True)
    other = view.locator('#results th[data-key="accuracy"]')
    other.locator("button").press("Space")
    assert (head.get_attribute("aria-sort"), other.get_attribute("aria-sort")) == (None, "descending")
    assert numbers(view, "Accuracy") == [100, 75, 50, 25]


def test_numbers_sort_as_numbers_and_gaps_stay_last(opened: Callable[..., Any]) -> None:
    view = opened()
    view.evaluate(
        """() => document.querySelectorAll('#results tbody tr').forEach((row, at) => {
             row.cells[3].dataset.value = ['9', '', '100', '10.5'][at]; })"""
    )
    head = view.locator('#results th[data-key="lenient"]')
    for order, wanted in (("descending", ["100", "10.5", "9", ""]), ("ascending", ["9", "10.5", "100", ""])):
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == order
        rows = view.locator("#results tbody tr")
        assert rows.evaluate_all("all => all.map(one => one.cells[3].dataset.value)") == wanted


def test_the_replay_plays_to_the_end(opened: Callable[..., Any]) -> None:
    view = opened()
    slider, play = view.locator("#replay [data-part=slider]"), view.locator("#replay [data-part=play]")
    assert tokens(view, "masked") == 0
    assert slider.input_value() == slider.get_attribute("max") == "12"
    view.locator("#replay [data-part=speed]").select_option("8")
    play.click()
    seen = set()
    while play.inner_text() == "Pause":
        seen.add(tokens(view, "masked"))
    assert len(seen) > 3
    assert (tokens(view, "masked"), slider.input_value()) == (0, "12")
    assert view.locator(".panel .done").all_inner_texts() == ["✓ done"] * 4


def test_the_slider_shows_what_each_forward_committed(opened: Callable[..., Any], run: Run) -> None:
    view = opened()
    slider = view.locator("#replay [data-part=slider]")
    slider.press("Home")
    assert tokens(view, "masked") == tokens(view, "given") + view.locator(".token").count()
    steps = {
        row["sampler"]: run.traces[row["key"]].trace.commit_step[0, run.traces[row["key"]].prompts[0] :].tolist()
        for row in run.rows
        if row["task"] == "arithmetic" and row["index"] == 0 and row["sampler"] in SAMPLERS
    }
    for forward in range(1, 5):
        slider.press("ArrowRight")
        assert slider.input_value() == str(forward)
        for panel in view.locator(".panel").all():
            name = panel.locator("h3").text_content()
            masked = [step >= forward for step in steps[name]]
            shown = panel.locator(".token").evaluate_all("all => all.map(one => one.classList.contains('masked'))")
            assert shown == masked
            done = panel.locator(".done").text_content()
            assert done.startswith("✓ done") == (forward >= max(steps[name]) + 1)
    slider.press("Space")
    assert view.locator("#replay [data-part=play]").inner_text() == "Pause"
    slider.press("Space")
    assert view.locator("#replay [data-part=play]").inner_text() == "Play"


def test_a_token_tells_its_forward_to_pointer_and_keys(opened: Callable[..., Any], run: Run) -> None:
    view = opened()
    row = next(row for row in run.rows if row["sampler"] == "sequential" and row["index"] == 0)
    panel = view.locator(".panel").first
    for index in (0, 1, 2):
        if index == 0:
            panel.locator(".token").first.focus()
        else:
            view.keyboard.press("ArrowRight")
        calls = panel.locator(".told").inner_text()
        assert f"forward {row['steps'][index] + 1} of 12" in calls
        assert float(calls.rpartition(" ")[2]) == pytest.approx(row["scores"][index], abs=1e-4)
    panel.locator(".token").nth(5).hover()
    assert panel.locator(".told").inner_text().startswith("position 5:")
    assert panel.locator(".token[tabindex='0']").count() == 1
    view.locator("#replay [data-part=slider]").press("Home")
    assert "still masked" in panel.locator(".told").inner_text()


def test_samplers_and_prompts_are_chosen(opened: Callable[..., Any]) -> None:
    view = opened()
    before = view.locator("#replay [data-part=asked]").inner_text()
    view.locator("#replay [data-part=prompt]").select_option("2")
    assert view.locator("#replay [data-part=asked]").inner_text() != before
    boxes = view.locator("#replay [data-part=runs] input")
    assert boxes.count() > 4
    boxes.nth(0).uncheck()
    boxes.nth(4).check()
    names = view.locator(".panel h3").all_text_contents()
    assert SAMPLERS[0] not in names
    assert any("(reference)" in name for name in names)


@pytest.mark.parametrize(("system", "other"), [("light", "dark"), ("dark", "light")])
def test_the_theme_follows_the_system_until_it_is_switched(opened: Callable[..., Any], system: str, other: str) -> None:
    view = opened(color_scheme=system)
    ground = lambda: sum(map(int, re.findall(r"\d+", view.evaluate("getComputedStyle(document.body).backgroundColor"))))  # noqa: E731
    bright = {"light": lambda level: level > 600, "dark": lambda level: level < 150}
    assert bright[system](ground())
    button = view.locator("#theme")
    assert button.inner_text() == f"{other.capitalize()} theme"
    button.click()
    assert bright[other](ground())
    assert button.inner_text() == f"{system.capitalize()} theme"


def test_the_plot_has_a_point_a_sampler_and_its_frontier(opened: Callable[..., Any], run: Run) -> None:
    view = opened()
    points = view.locator("#frontier [data-part=chart] .point")
    calls = points.evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
    assert [text.partition(":")[0].split()[0] for text in calls] == ["1", "2", "3", "4"]
    whole = [row for row in Table(run).frontier() if not row["failed"]]
    ahead = {text.split(" ", 1)[1] for text in calls if "on the frontier" in text}
    assert {name for name in SAMPLERS if any(text.startswith(f"{name}:") for text in ahead)} >= {whole[-1]["sampler"]}
    assert "1 failed" in calls[3]
    assert "on the frontier" not in calls[3]
    points.first.focus()
    tip = view.locator("#frontier [data-part=tip]")
    assert tip.inner_text() == calls[0]
    view.keyboard.press("Escape")
    assert tip.is_hidden()
    task = view.locator("#frontier [data-part=task]")
    task.select_option("lists")
    assert "(51% to 100%)" in points.first.get_attribute("aria-label")  # Wilson's interval of 4 in 4
    view.locator("#frontier [data-part=cost]").evaluate("one => [...one.options].map(o => [o.value, o.disabled])")
    task.select_option("")
    view.locator("#frontier [data-part=cost]").select_option("tokens_per_second")
    assert "tokens per second" in points.first.get_attribute("aria-label")


@pytest.mark.parametrize(("name", "width"), [("report", 360), ("crowded", 360), ("crowded", 1280), ("result", 360)])
def test_nothing_is_wider_than_the_window_and_no_label_covers_another(
    opened: Callable[..., Any], name: str, width: int
) -> None:
    view = opened(name, width=width)
    for details in view.locator("details").all():
        details.locator("summary").click()
    assert view.evaluate("document.documentElement.scrollWidth") == width
    boxes = view.locator("#frontier .label").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect()).map(b => [b.left, b.top + 2, b.right, b.bottom - 2])"
    )
    assert len(boxes) == {"report": 4, "crowded": 9, "result": 0}[name]
    for at, one in enumerate(boxes):
        assert one[0] >= 0
        assert one[2] <= width
        for other in boxes[:at]:
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


@pytest.mark.parametrize("name", ["report", "result"])
def test_heads_are_in_order_and_controls_have_names(opened: Callable[..., Any], name: str) -> None:
    view = opened(name)
    levels = view.evaluate("() => [...document.querySelectorAll('h1,h2,h3,h4')].map(one => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    nameless = view.evaluate(
        """() => [...document.querySelectorAll('button, select, input, [role=option], [tabindex="0"]')]
             .filter(one => !one.closest('[hidden]'))
             .filter(one => !(one.ariaLabel || one.labels?.length || one.textContent.trim()))
             .map(one => one.outerHTML)"""
    )
    assert nameless == []
    ids = view.evaluate("() => [...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len(set(ids))


def test_no_column_of_the_results_is_cut_at_1280_pixels(opened: Callable[..., Any]) -> None:
    view = opened(width=1280)
    wide = "() => [...document.querySelectorAll('#results .scroll')].map(one => one.scrollWidth - one.clientWidth)"
    assert view.evaluate(wide) == [0]


@pytest.mark.parametrize(
    ("given", "named"),
    [("/data/models/my-model", "my-model"), ("runs/a.gguf", "a"), ("./x/y/", "y"), ("owner/name", "owner/name")],
)
def test_titles_name_the_model_and_not_its_path(run: Run, given: str, named: str) -> None:
    text = page(Run({**run.config, "model": given}, run.environment, run.rows, run.traces))
    assert f"<title>{named}: " in text


def test_without_motion_nothing_fades(opened: Callable[..., Any]) -> None:
    moving = "() => getComputedStyle(document.querySelector('.token')).transitionDuration"
    view = opened(reduced_motion="reduce")
    assert view.evaluate(moving) == "0s"
    view.emulate_media(reduced_motion="no-preference")
    assert view.evaluate(moving) != "0s"


def test_one_result_plays_too(opened: Callable[..., Any]) -> None:
    view = opened("result")
    slider = view.locator("#replay [data-part=slider]")
    assert slider.get_attribute("max") == "8"
    slider.press("Home")
    assert tokens(view, "masked") == 8
    slider.press("ArrowRight")
    assert tokens(view, "masked") == 7
    view.locator("#replay [data-part=prompt]").select_option("1")
    assert view.locator("#replay [data-part=asked]").inner_text().endswith("Ann")
    assert view.locator("#replay [data-part=runs]").is_hidden()


# --- without one ---


def test_the_report_needs_no_network_and_escapes_what_it_shows(run: Run) -> None:
    text = page(run)
    assert not re.search(r"https?://|src=|@import|<link", text)
    assert "no room for &lt;8&gt; rows &amp; more" in text
    assert "<8>" not in text
    assert '<tr class="failed">' in text
    assert len(text) < 500_000


def test_every_tag_is_closed(run: Run) -> None:
    from html.parser import HTMLParser

    void = {"meta", "input", "wbr"}

    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            pass  # of SVG

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag not in void:
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    for text in (page(run), result_page(next(iter(run.traces.values())))):
        tags = Tags()
        tags.feed(text)
        assert tags.open == []


def row(**figures: Any) -> dict[str, Any]:
    return {"sampler": "s", "exact": "relaxed", "failed": 0, "error": None, "accuracy": None, "nfe": None, **figures}


def scored(sampler: str, nfe: float, accuracy: float | None, spread: float = 0.05, **more: Any) -> dict[str, Any]:
    ends = {} if accuracy is None else {"accuracy_low": accuracy - spread, "accuracy_high": accuracy + spread}
    return row(sampler=sampler, nfe=nfe, accuracy=accuracy, **ends, **more)


BASE = scored("base", 32.0, 0.9, exact="greedy")


BESIDE = "`a` takes 4 forwards per problem where `base` takes 32"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([BASE, scored("a", 4.0, 0.9)], f"{BESIDE}, with the same accuracy of 90%."),
        (
            [BASE, scored("a", 4.0, 0.95), scored("b", 2.0, 0.89)],
            f"{BESIDE}, with an accuracy of 95% against 90%.",
        ),
        (
            [BASE, scored("a", 4.0, 0.85), scored("b", 2.0, 0.5)],
            f"{BESIDE}, with an accuracy of 85% against 90% (the 95% intervals overlap).",
        ),
        (
            [BASE, scored("a", 4.0, 0.5), scored("b", 2.0, 0.4)],
            "No sampler with fewer forwards keeps the accuracy of `base`, 90% in 32 forwards per problem: "
            "the nearest, `a`, reaches 50% in 4.",
        ),
        (
            [BASE, scored("a", 40.0, 1.0)],
            "No other sampler needs fewer than the 32 forwards per problem of `base` at an accuracy of 90%.",
        ),
        ([BASE], "`base` takes 32 forwards per problem at an accuracy of 90%."),
        ([scored("base", 32.0, None), scored("a", 4.0, None)], f"{BESIDE}; nothing was scored."),
        (
            [BASE, scored("a", 2.0, 0.9, failed=3, error="E")],
            "`base` takes 32 forwards per problem at an accuracy of 90%. "
            "`a` failed on some problems and is left out of this comparison.",
        ),
        ([row(failed=2, error="OutOfMemory: x")], "No sampler finished all problems: OutOfMemory: x"),
    ],
)
def test_the_finding_is_what_the_table_says(rows: list[dict[str, Any]], message: str) -> None:
    assert finding(rows) == message


def test_commit_order_by_hand() -> None:
    rows = [
        {"sampler": "a", "error": None, "steps": [0, 4, 2]},
        {"sampler": "a", "error": None, "steps": [1, 0]},
        {"sampler": "a", "error": None, "steps": [0, -1]},  # one forward; the second position is a prompt token
        {"sampler": "a", "error": "E", "steps": None},
        {"sampler": "b", "error": None, "steps": []},
    ]
    order = commit_order(rows)
    assert list(order) == ["a"]
    assert order["a"] == [pytest.approx((1 / 3, 3)), pytest.approx((0.5, 2)), pytest.approx((0.5, 1))]
    first, second = binned(order["a"], 2)
    assert second is not None
    assert first[0] == pytest.approx((1 / 3 * 3 + 0.5 * 2) / 5)
    assert second == (0.5, "position 3–4: 50.0%, 1 problems")


def test_acceptance_appears_where_rows_have_it(run: Run) -> None:
    assert "Acceptance" not in page(run)
    rows = copy.deepcopy(run.rows)
    for at, entry in enumerate(row for row in rows if row["sampler"] == "sequential"):
        # A round that drafts two and accepts both, or one of them, or one that drafts one and rejects it.
        drafted, accepted = ((2, 2), (2, 1), (1, 0))[at % 3]
        entry |= {"drafted": [0, drafted], "accepted": [0, accepted], "steps": [0] + [1] * (accepted + 1)}
        entry |= {"draft_forwards": 0, "deviation": None, "batch": {**entry["batch"], "padding": 0}}
    means = acceptance(rows)
    assert means == {"sequential": [(6 / 8, 8), (pytest.approx(3 / 6), 6)]}  # eight rows: 3, 3 and 2 of each kind
    text = page(Run(run.config, run.environment, rows, run.traces))
    assert "Acceptance by draft position" in text
    assert 'title="position 1: 75.0%, 8 rounds">75</td>' in text
    assert '<td data-value="2.125">2.12</td>' in text  # (3 * 3 + 3 * 2 + 2) / 8


def test_a_run_without_scores_or_traces_is_still_a_report(run: Run) -> None:
    rows = [{**row, "score": None, "lenient": None} for row in run.rows]
    text = page(Run(run.config, run.environment, rows, {}))
    assert 'id="replay"' not in text
    assert "nothing was scored" in text
    nothing = [{**row, "error": "E: x", "nfe": None, "steps": None, "score": None} for row in rows]
    text = page(Run(run.config, run.environment, nothing, {}))
    assert "No sampler finished all problems: E: x" in text
    assert 'id="frontier"' not in text


def test_directions_are_those_of_the_frontier() -> None:
    assert {column.key for column in COLUMNS if column.better == "high"} == set(GAINS)


def test_the_call_that_makes_it_again_is_the_one_that_made_it(run: Run) -> None:
    calls = call_arguments(run.config)
    assert calls == {
        "task": ["arithmetic", "lists"],
        "samplers": SAMPLERS,
        "limit": 4,
        "batch_size": 2,
        "replays": 2,
        "dtype": "float32",
        "max_new_tokens": 12,
        "stop_ids": [],
    }
    made: dict[str, Any] = {}
    code = "\n".join(python(run.config)).replace("import pardec", "").replace("pardec.compare", "dict")
    exec(code.replace(repr(run.config["model"]), f"model={run.config['model']!r}"), made)
    assert made["table"] == {"model": run.config["model"], **calls, "out": "run"}
    assert shell(run.config) == []  # the command has no --stop-ids


def test_the_command_has_every_flag_that_is_shown(run: Run) -> None:
    from pardec.cli.app import command_line

    where = {"device": "cpu", "device_map": None, "executor": "torchrun", "workers": 2}
    generate = {"max_new_tokens": 12, "block_length": 4, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "cfg": 1.5}
    file = {"name": "mine", "file": "my prompts.jsonl", "scorer": "number", "problems": 3, "digest": ""}
    more = {"seeds": [0, 3], "references": False, "split": "train", "problem_seed": 8, "cost_ratio": 0.2}
    config = {**run.config, **more, "where": where, "generate": generate, "tasks": [*run.config["tasks"], file]}
    words = shlex.split(" ".join(line.removesuffix("\\") for line in shell(config)))
    assert words[:7] == ["torchrun", "--nproc-per-node", "2", "-m", "pardec", "compare", "random-dream"]
    command = command_line().commands["compare"]  # type: ignore[attr-defined]
    read = command.make_context("compare", words[6:]).params
    assert read["sampler"] == SAMPLERS
    assert read["task"] == ["arithmetic", "lists"]
    assert str(read["prompts"]) == "my prompts.jsonl"
    assert {name: read[name] for name in generate} == generate
    assert (read["seeds"], read["no_references"], read["split"], read["problem_seed"]) == ("0,3", True, "train", 8)
    assert read["cost_ratio"] == 0.2
    assert (read["executor"], read["workers"], read["limit"], read["batch_size"]) == ("torchrun", 2, 4, 2)
    handed_in = {**config, "tasks": [{**file, "file": None}]}
    assert shell(handed_in) == []
    assert "    prompts=prompts,  # the prompts of this run" in python(handed_in)
