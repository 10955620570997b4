"""A result as HTML: a page that replays the decode, and a coloured fragment for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from pardec.models.printable import plain

from . import image_view
from . import replay as replays
from .colour import ink, shade
from .document import asset, document, fill, spec, web
from .token_grid import TracedToken, heading, last_step, traced_tokens

if TYPE_CHECKING:
    from ..result_data import ResultData

_STYLE = """
.pardec { font: 15px/2 ui-monospace, monospace; }
.pardec p { margin: .4em 0; overflow-wrap: anywhere; }
.pardec span { white-space: pre-wrap; padding: .15em 0; }
.pardec .given { opacity: .6; }
.pardec small { font: 13px/1.5 system-ui, sans-serif; opacity: .75; }
"""


def page(result: ResultData) -> str:
    """A self-contained page with a slider and a play button over the forwards of each row."""
    if result.images:
        return _page(result, "drawn", {"scale": replays.scale(), **image_view.data(result)})
    prompts = [
        {"label": f"row {row}", "prompt": replays.prompt(result, row), "runs": [replays.run(result, row, result.spec)]}
        for row in range(len(result.prompts))
    ]
    return _page(result, "replay", {"scale": replays.scale(), "prompts": prompts})


def _page(result: ResultData, name: str, data: dict[str, Any]) -> str:
    """The page around `web/<name>.html`, with the style and scripts of that name."""
    settings = {**result.settings, "seeds": result.seeds[:8], **result.environment}
    details = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>" for name, value in settings.items())
    body = fill(
        asset("pardec.views", "web/result.html"),
        model=escape(result.model),
        heading=spec(heading(result).partition(" | ")[2]),
        replay=asset("pardec.views", f"web/{name}.html"),
        details=details,
    )
    return document(
        heading(result),
        body,
        styles=web("page.css", f"{name}.css"),
        scripts=web("page.js", f"{name}.js", "result.js" if name == "replay" else f"{name}_page.js"),
        data=data,
    )


def fragment(result: ResultData) -> str:
    """An HTML fragment for notebooks with only the coloured text, or the images."""
    if result.images:
        return image_view.fragment(result)
    rows = traced_tokens(result)
    last = last_step(rows)
    lines = "\n".join(f"<p>{''.join(_span(token, last) for token in row)}</p>" for row in rows)
    return plain(f'<style>{_STYLE}</style><div class="pardec"><small>{escape(heading(result))}</small>\n{lines}</div>')


def _span(token: TracedToken, last: int) -> str:
    text = escape(token.text)
    if token.step < 0:
        return f'<span class="given">{text}</span>'
    background = shade(token.step, last)
    title = f"forward {token.step + 1}, score {token.score:.3f}"
    return f'<span style="background:{background};color:{ink(background)}" title="{title}">{text}</span>'
