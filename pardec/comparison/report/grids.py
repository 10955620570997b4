"""Pictures of every sampler side by side, and beside each the tokens that a forward gained, as a map over its cells."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ...views import image_view
from ...views.document import spec

if TYPE_CHECKING:
    from ...io.jsonl import Row
    from ...result import Result
    from ..run import Run

_LEGEND = """<p>For each caption or class a picture of every sampler, and its map: how many tokens the forward gained
that drew each cell, from 1 (dark) to {top} (light).</p>"""


def section(run: Run) -> str:
    """The pictures whose whole decodes were kept; empty for text."""
    shown: dict[tuple[str, int], list[tuple[Row, Result]]] = {}
    for row in run.rows:
        result = run.traces.get(row["key"])
        if result is not None and result.images:
            shown.setdefault((row["task"], row["index"]), []).append((row, result))
    if not shown:
        return ""
    order = {entry["sampler"]: number for number, entry in enumerate(run.config["samplers"])}
    top = max(image_view.most(result) for pairs in shown.values() for _, result in pairs)
    parts = [_LEGEND.format(top=top)]
    for place in sorted(shown):
        pairs = sorted(shown[place], key=lambda pair: (order[pair[0]["sampler"]], pair[0]["seed"]))
        title = image_view.title(pairs[0][1], 0)
        named = "" if pairs[0][1].shown == [title] else f": {pairs[0][0]['problem']}"
        parts.append(f"<h3>{escape(title + named)}</h3>")
        parts.append(f'<div class="drawn">{"".join(_figure(*pair, top) for pair in pairs)}</div>')
    return "\n".join(parts)


def _figure(row: Row, result: Result, top: int) -> str:
    assert result.images is not None, "asked for by `section`"
    picture = result.images[0]
    counts = image_view.gained(result, 0)
    right = {None: "", 1.0: ", right", 0.0: ", wrong"}.get(row["score"], "")
    caption = ", ".join(filter(None, (f"{row['nfe']} forwards", image_view.accepted(result, 0))))
    about = f"{row['sampler']}: {image_view.title(result, 0)}"
    return (
        f'<figure><img src="{image_view.source(picture)}" alt="{escape(about, quote=True)}">'
        f'<img src="{image_view.source(image_view.heat(counts, top, picture.size))}" '
        f'alt="tokens gained a forward, at most {int(counts.max())}"><figcaption>'
        f"{spec(row['sampler'])}<br>{escape(caption)}{right}</figcaption></figure>"
    )
