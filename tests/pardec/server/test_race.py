"""The page at `/`, in Chromium: two samplers race, forward by forward, while other clients are served."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pardec
from pardec.server.limits import Limits
from tests.pardec.browser import browser
from tests.pardec.server.http_server import Running, serving

REFUSED = "Failed to load resource"  # Chromium says so of an answer with an error, which the page shows
QUESTION = "Tom has 8 cups. He loses 3. How many cups does Tom have now?"


@pytest.fixture(scope="module", params=["tiny-dream", "tiny-llama"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    with serving(pardec.load(request.param, device="cpu"), limits=Limits(batch_size=8)) as running:
        yield running


@pytest.fixture(scope="module")
def opened(running: Running) -> Iterator[Callable[[], Any]]:
    """Opens the page, and fails on errors in the browser and on requests to anywhere but the server."""
    with browser(running.url, expected=REFUSED) as show:
        yield lambda: show(running.url)


def race(view: Any, *, one: str, two: str) -> None:
    view.fill("#asked", QUESTION)
    view.fill("#one", one)
    view.fill("#two", two)
    view.fill("#tokens", "24")
    view.click("#go")


def test_both_canvases_end_with_the_texts_and_forwards_of_generate(
    opened: Callable[[], Any], running: Running, tmp_path: Path
) -> None:
    model, view = running.server.model, opened()
    samplers = ("sequential", "threshold" if model.family == "masked" else "lookup:k=3")
    race(view, one=samplers[0], two=samplers[1])
    view.locator(".panel.over").nth(1).wait_for()
    for panel, sampler in zip(view.locator(".panel").all(), samplers, strict=True):
        alone = model.generate(QUESTION, sampler=sampler, max_new_tokens=24)
        assert panel.locator(".final").inner_text() == f"Final text: {alone.text[0].strip()}"
        assert panel.locator(".count").inner_text().startswith(f"{alone.nfe[0]} forwards, ")
    assert view.screenshot(path=tmp_path / "race.png")[:4] == b"\x89PNG"
    whole = [panel.locator(".token:not(.masked)").count() for panel in view.locator(".panel").all()]
    view.locator("#at").fill("1")
    after_one = [panel.locator(".token:not(.masked)").count() for panel in view.locator(".panel").all()]
    assert view.locator("#shown").inner_text().startswith("1 of ")
    assert after_one[0] == 1
    assert whole[0] > 1
    assert 1 <= after_one[1] <= whole[1]
    assert view.locator(".token.fresh").count() == sum(after_one)


def test_a_wrong_sampler_is_named_and_the_other_one_still_runs(opened: Callable[[], Any]) -> None:
    view = opened()
    race(view, one="sequentail", two="sequential")
    view.locator(".panel.over").wait_for()
    assert "did you mean 'sequential'" in view.locator(".panel .final").first.inner_text()


def test_sixteen_clients_are_served_meanwhile(opened: Callable[[], Any], running: Running) -> None:
    view, texts = opened(), []
    body = {"prompt": QUESTION, "max_tokens": 24, "temperature": 0}

    def ask() -> None:
        texts.append(running.post("/v1/completions", body).json()["choices"][0]["text"])

    clients = [threading.Thread(target=ask) for _ in range(16)]
    for client in clients:
        client.start()
    view.check("#turns")
    race(view, one="sequential", two="sequential")
    view.locator(".panel.over").nth(1).wait_for()
    for client in clients:
        client.join()
    assert texts == running.server.model.generate([QUESTION] * 16, max_new_tokens=24).text


def test_with_a_key_the_page_is_open_and_has_a_field_for_it() -> None:
    with serving(pardec.load("tiny-llama", device="cpu"), api_key="secret") as running:
        shown = running.get("/")
        assert shown.status_code == 200
        assert "<label >Key" in shown.text
        assert running.post("/v1/completions", {"prompt": "Tom"}).status_code == 401


def test_an_image_model_has_no_such_page() -> None:
    with serving(pardec.load("tiny-llamagen", device="cpu")) as running:
        refused = running.get("/")
        assert refused.status_code == 404
        assert "draws images" in refused.json()["error"]["message"]
