"""Chromium for the tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ("--disable-gpu", "--disable-background-networking", "--disable-component-update", "--no-first-run")


@contextmanager
def browser(site: str | None = None, expected: str | None = None) -> Iterator[Callable[..., Any]]:
    """A function that opens an address in a window; without Chromium the test is skipped.

    Fails at the end on messages and errors in the browser, but those with the text `expected`, and on requests to
    anything but the address, and what lies below `site`.
    """
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (Debian and Ubuntu: apt install chromium)")
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    complaints: list[str] = []

    def complain(text: str, harmless: bool) -> None:
        if not harmless:
            complaints.append(text)

    with sync_playwright() as play:
        sandbox = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=[*QUIET, *sandbox])

        def show(address: str, width: int = 1280, **options: Any) -> Any:
            view = chromium.new_page(viewport={"width": width, "height": 900}, **options)
            view.set_default_timeout(120_000)
            view.on("console", lambda said: complain(said.text, expected is not None and expected in said.text))
            view.on("pageerror", lambda error: complaints.append(str(error)))
            view.on("request", lambda asked: complain(asked.url, asked.url.startswith(site or address)))
            view.goto(address)
            return view

        yield show
        chromium.close()
    assert not complaints
