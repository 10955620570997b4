"""The images of every sampler side by side, each with a map of the tokens gained per forward."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ...views import image_view
from ...views.document import spec

if TYPE_CHECKING:
    from ...io.jsonl import Row
    from ...result import Result
    from ..run import Run

_LEGEND = """<p>For each caption or class an image of every sampler, and its map: for each token, how many tokens were
committed in the same forward, from 1 (dark) to {top} (light).</p>"""

_MAPS_LEGEND = """<p>For each class an image of every sampler, and its token maps, coarse to fine: the lighter a
code, the likelier it was.</p>"""


def section(run: Run) -> str:
    """The images whose results were saved; empty for text."""
    by_problem: dict[tuple[str, int], list[tuple[Row, Result]]] = {}
    for row in run.rows:
        result = run.traces.get(row["key"])
        if result is not None and result.images:
            by_problem.setdefault((row["task"], row["index"]), []).append((row, result))
    if not by_problem:
        return ""
    order = {entry["sampler"]: number for number, entry in enumerate(run.config["samplers"])}
    top = max(image_view.max_count(result) for pairs in by_problem.values() for _, result in pairs)
    maps = any(result.sides is not None for pairs in by_problem.values() for _, result in pairs)
    parts = [_MAPS_LEGEND if maps else _LEGEND.format(top=top)]
    for problem in sorted(by_problem):
        pairs = sorted(by_problem[problem], key=lambda pair: (order[pair[0]["sampler"]], pair[0]["seed"]))
        title = image_view.title(pairs[0][1], 0)
        suffix = "" if pairs[0][1].shown == [title] else f": {pairs[0][0]['problem']}"
        parts.append(f"<h3>{escape(title + suffix)}</h3>")
        parts.append(f'<div class="images">{"".join(_figure(*pair, top) for pair in pairs)}</div>')
    return "\n".join(parts)


def _figure(row: Row, result: Result, top: int) -> str:
    assert result.images is not None, "`section` selects results with images"
    image = result.images[0]
    counts = image_view.commit_counts(result, 0)
    verdict = {None: "", 1.0: ", right", 0.0: ", wrong"}.get(row["score"], "")
    caption = ", ".join(filter(None, (image_view.forwards_text(result, 0), image_view.acceptance_text(result, 0))))
    alt = f"{row['sampler']}: {image_view.title(result, 0)}"
    return (
        f'<figure><img src="{image_view.data_url(image)}" alt="{escape(alt, quote=True)}">'
        f'<img src="{image_view.data_url(image_view.heat(result, 0, top, image.size))}" '
        f'alt="tokens gained per forward, at most {int(counts.max())}"><figcaption>'
        f"{spec(row['sampler'])}<br>{escape(caption)}{verdict}</figcaption></figure>"
    )
