"""A live view on a terminal is removed when the text is printed there."""

from __future__ import annotations

import pardec
from pardec.cli.batches import Batches
from pardec.io.prompt_files import Item
from pardec.views.terminal import Watch
from tests.pardec.terminals import Terminal


def test_a_transient_canvas_is_removed_at_the_end(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setattr("sys.stdout", Terminal())
    model = pardec.load("tiny-dream", device="cpu")
    made = []
    monkeypatch.setattr("pardec.cli.batches.Watch", lambda *args, **more: made.append(Watch(*args, **more)) or made[-1])
    text = "Tom has 8 cups. He loses 3. How many cups does Tom have now?"
    for show in (True, False):
        run = Batches(model, model.prepare([text]), [Item(0, text)], stream=True, quiet=False)
        run.decode(1, show=show)
    assert [watch.live.transient for watch in made] == [True, False]
