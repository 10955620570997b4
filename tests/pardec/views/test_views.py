"""Views of a decode: lines and colours in a terminal, one HTML file, images."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import pardec
from pardec.samplers.events import RowFinished, Started, Step
from pardec.views.colour import contrast, glow, luminance, ramp, shade
from pardec.views.document import embedded, fill
from pardec.views.html import fragment, page
from pardec.views.order_image import gif, png
from pardec.views.terminal import Watch, finished
from pardec.views.token_grid import traced_tokens
from tests.pardec.terminals import Terminal


@pytest.fixture(scope="module")
def result(model: pardec.Model) -> pardec.Result:
    return model.generate(["Tom has 3 cups.", "Ann"], max_new_tokens=10, sampler="threshold:tau=0.3")


def test_a_log_gets_one_line_a_step(model: pardec.Model) -> None:
    log = io.StringIO()
    with Watch(model.tokenizer, log) as watch:
        for event in model.stream("Tom has 3 cups.", max_new_tokens=5, sampler="sequential", stop_ids=[]):
            watch(event)
    lines = log.getvalue().splitlines()
    assert len(lines) == 5
    assert "1/5" in lines[0]
    assert [line.count("·") for line in lines] == [4, 3, 2, 1, 0]
    assert "\x1b" not in log.getvalue()


def test_a_terminal_is_redrawn(model: pardec.Model, colours: None) -> None:
    terminal = Terminal()
    with Watch(model.tokenizer, terminal) as watch:
        for event in model.stream(["Tom", "Ann"] * 5, max_new_tokens=4):
            watch(event)
    output = terminal.getvalue()
    assert "\x1b[" in output
    assert "and 2 more rows" in output
    assert "40 of 40 committed" in output


def test_a_stopped_row_shows_nothing_after_its_end(model: pardec.Model) -> None:
    whole = model.generate("Tom has 3 cups.", max_new_tokens=8, stop_ids=[], sampler="threshold:tau=0.0")
    log = io.StringIO()
    stop = whole.tokens[0][2]
    with Watch(model.tokenizer, log) as watch:
        for event in model.stream("Tom has 3 cups.", max_new_tokens=8, stop_ids=[stop]):
            watch(event)
    assert not watch.open.any()


def test_the_page_is_complete_and_needs_no_network(result: pardec.Result) -> None:
    text = page(result)
    assert not re.search(r"https?://|src=|@import|<link", text)
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    for row, (tokens, prompt) in enumerate(zip(traced_tokens(result), data["prompts"], strict=True)):
        start, (run,) = result.prompts[row], prompt["runs"]
        end = start + len(run["texts"])
        assert prompt["prompt"] == "".join(token.text for token in tokens[:start])
        assert run["texts"] == [token.text for token in tokens[start:]]
        assert run["steps"][: end - start] == [token.step for token in tokens[start:]]
        assert len(run["steps"]) == len(run["scores"]) == result.trace.lengths[row] - start
    assert "<script>" not in fragment(result)
    assert result._repr_html_() == fragment(result)


def test_text_is_escaped(model: pardec.Model) -> None:
    result = model.generate(input_ids=[[5, 2, 3]], max_new_tokens=2)
    assert "&lt;bos&gt;" in fragment(result)
    assert "\\u003cbos\\u003e" in page(result)
    assert "<bos>" not in fragment(result) + page(result)


def test_no_text_ends_the_data_of_a_page() -> None:
    data = {"text": "</script><script>&\u2028", "score": float("nan"), "rest": [float("-inf"), 1.5]}
    text = embedded(data)
    assert not set("<>&") & set(text)
    # A mark that breaks or reorders lines is spelled out.
    assert json.loads(text) == {"text": "</script><script>&\\u2028", "score": None, "rest": [None, 1.5]}


def test_a_page_is_filled_once() -> None:
    assert fill("{{one}} {{two}}", one="{{two}}", two="2") == "{{two}} 2"
    with pytest.raises(KeyError):
        fill("{{one}}")


def test_animations_have_a_frame_for_every_forward(result: pardec.Result) -> None:
    still = Image.open(io.BytesIO(png(result)))
    assert still.format == "PNG"
    moving = Image.open(io.BytesIO(gif(result)))
    last = max(token.step for row in traced_tokens(result) for token in row)
    assert moving.n_frames == last + 2  # type: ignore[attr-defined]
    assert moving.size == still.size


def test_a_long_run_skips_frames(model: pardec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pardec.views.frames.FRAMES", 4)
    long = model.generate("Tom", max_new_tokens=16, sampler="sequential", stop_ids=[])
    assert Image.open(io.BytesIO(gif(long))).n_frames <= 5  # type: ignore[attr-defined]


def test_a_finished_run_is_coloured_by_step(result: pardec.Result) -> None:
    # As HTML: a style keeps the terminal's codes that the first console of the process gave it.
    console = Console(file=io.StringIO(), force_terminal=True, record=True, width=200)
    console.print(finished(result))
    steps = len({token.step for row in traced_tokens(result) for token in row})
    assert len(set(re.findall(r"(?<![-\w])color: (#\w{6})", console.export_html(inline_styles=True)))) >= steps > 1


def test_the_scale_grows_lighter_and_its_text_reads() -> None:
    assert shade(0, 0) == shade(0, 5)
    assert len({glow(step, 9) for step in range(10)}) == 10
    levels = [luminance(ground) for ground, _ in ramp()]
    assert levels == sorted(levels)
    assert levels[-1] > 5 * levels[0]
    assert min(contrast(ground, text) for ground, text in ramp()) >= 4.5
    assert min(contrast(glow(step, 9), "#000000") for step in range(10)) >= 4.5
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert luminance("#ff0000") == pytest.approx(0.2126)


def revised_step(open_: list[bool], tokens: list[int], revised: list[bool], number: int = 1) -> Step:
    one = np.array([0])
    flags = {"open": np.array([open_]), "committed": np.zeros((1, 4), dtype=bool), "revised": np.array([revised])}
    return Step(number=number, rows=one, nfe=one + number + 1, tokens=np.array([tokens]), settled=one, **flags)


def test_a_revision_is_open_again_and_counted(model: pardec.Model, colours: None) -> None:

    started = Started(np.array([[50, 4, 4, 4]]), np.array([[False, True, True, True]]), np.array([1]))
    first = revised_step([False, False, False, True], [50, 60, 61, 4], [False] * 4, number=0)
    first = replace(first, committed=np.array([[False, True, True, False]]))
    second = revised_step([False, False, True, True], [50, 62, 4, 4], [False, True, True, False])
    log, terminal = io.StringIO(), Terminal()
    for stream in (log, terminal):
        with Watch(model.tokenizer, stream) as watch:
            for event in (started, first, second):
                watch(event)
            assert watch.when[0].tolist() == [-1, 1, -1, -1]
            styles = [str(span.style) for span in watch._line(0).spans]
            assert styles == ["bold red", "red", "dim"]
    assert [line.count("·") for line in log.getvalue().splitlines()] == [1, 2]
    assert "~0 " in log.getvalue().splitlines()[0]
    assert "~2 " in log.getvalue().splitlines()[1]


@pytest.mark.parametrize("spec", ["threshold:tau=0.3+wino", "threshold:tau=0.3+remdm", "fixed:steps=3+edit"])
def test_revising_runs_can_be_watched_and_viewed(model: pardec.Model, spec: str) -> None:
    log, revised = io.StringIO(), 0
    with Watch(model.tokenizer, log) as watch:
        for event in model.stream("Tom has 3 cups.", max_new_tokens=8, sampler=spec, stop_ids=[], temperature=0.9):
            watch(event)
            if isinstance(event, Step) and event.revised is not None:
                revised += int(event.revised.sum())
    assert revised == sum(int(line.split("~")[1].split()[0]) for line in log.getvalue().splitlines())
    assert not watch.open.any()
    assert page(model.generate("Tom has 3 cups.", max_new_tokens=8, sampler=spec))


def test_a_row_that_stops_before_it_committed_anything_can_be_watched(model: pardec.Model) -> None:
    with Watch(model.tokenizer, io.StringIO()) as watch:
        watch(Started(np.array([[50, 4]]), np.array([[False, True]]), np.array([1])))
        watch(RowFinished(0, np.array([50, 0]), "stop", 0))
    assert not watch.open.any()
