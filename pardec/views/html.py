"""A result as HTML: coloured by the forward that committed each token, with a slider; one file, no network."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from pardec.views.cells import Cell, cells, heading, last_step
from pardec.views.colour import shade

if TYPE_CHECKING:
    from pardec.result import Result

_STYLE = """
.pardec { font: 15px/2 ui-monospace, monospace; color: #1b1f24; }
.pardec p { margin: .4em 0; overflow-wrap: anywhere; }
.pardec span { white-space: pre-wrap; padding: .15em 0; }
.pardec .given { color: #6a737d; }
.pardec small { font: 13px/1.5 system-ui, sans-serif; color: #57606a; }
"""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>body {{ margin: 2em auto; max-width: 60em; padding: 0 1em; background: #fff; }}
.pardec .open {{ background: #eaeef2 !important; color: transparent; }} input {{ width: 100%; }}{style}</style></head>
<body>
<label for="step">after forward <output id="at">{last}</output> of {last}</label>
<input id="step" type="range" min="0" max="{last}" value="{last}">
{body}
<script>
const tokens = document.querySelectorAll("[data-step]"), at = document.getElementById("at");
function show(step) {{
  at.textContent = step;
  for (const token of tokens) token.classList.toggle("open", Number(token.dataset.step) > step);
}}
document.getElementById("step").addEventListener("input", event => show(Number(event.target.value)));
show({last});
</script>
</body></html>
"""


def page(result: Result) -> str:
    """A whole page. The slider counts forwards of each row from 1; at 0 nothing is committed."""
    rows = cells(result)
    return _PAGE.format(title=escape(heading(result)), style=_STYLE, last=last_step(rows) + 1, body=_body(result, rows))


def fragment(result: Result) -> str:
    """The same for a notebook, without the slider."""
    return f"<style>{_STYLE}</style>{_body(result, cells(result))}"


def _body(result: Result, rows: list[list[Cell]]) -> str:
    last = last_step(rows)
    lines = "\n".join(f"<p>{''.join(_span(cell, last) for cell in row)}</p>" for row in rows)
    return f'<div class="pardec"><small>{escape(heading(result))}</small>\n{lines}</div>'


def _span(cell: Cell, last: int) -> str:
    text = escape(cell.text)
    if cell.step < 0:
        return f'<span class="given">{text}</span>'
    colour = shade(cell.step, last, lightness=0.82)
    title = f"forward {cell.step + 1}, score {cell.score:.3f}"
    return f'<span data-step="{cell.step + 1}" style="background:{colour}" title="{title}">{text}</span>'
