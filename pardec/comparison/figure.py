"""Quality against cost as a figure for papers, in SVG or PDF; no library is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Any

from pardec.models.errors import SpecError, did_you_mean

from .report.columns import COLUMNS, log_ticks, percent, plain, ticks

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 420.0, 260.0, 48.0, 12.0, 10.0, 42.0
_LINE = 13.0  # height of a line of the key
_BLUE, _INK, _SOFT, _GRID = "#0a5aad", "#171b1f", "#56616b", "#d5dbe0"


@dataclass
class Drawing:
    """Lines, circles and texts on a page whose origin is at the top left, in points."""

    width: float
    height: float
    parts: list[tuple[Any, ...]] = field(default_factory=list)

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float = 0.8, dash: str = "") -> None:
        self.parts.append(("line", points, colour, width, dash))

    def circle(self, x: float, y: float, radius: float, colour: str, *, filled: bool) -> None:
        self.parts.append(("circle", x, y, radius, colour, filled))

    def text(self, x: float, y: float, said: str, colour: str, anchor: str = "start", turned: bool = False) -> None:
        self.parts.append(("text", x, y, said, colour, anchor, turned))

    def svg(self) -> str:
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:g}" height="{self.height:g}" '
            f'viewBox="0 0 {self.width:g} {self.height:g}" font-family="Helvetica, Arial, sans-serif" font-size="9">'
        ]
        for kind, *values in self.parts:
            if kind == "line":
                points, colour, width, dash = values
                path = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
                dashes = f' stroke-dasharray="{dash}"' if dash else ""
                lines.append(
                    f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'
                )
            elif kind == "circle":
                x, y, radius, colour, filled = values
                inside = colour if filled else "white"
                lines.append(f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{radius}" fill="{inside}" stroke="{colour}"/>')
            else:
                x, y, said, colour, anchor, turned = values
                turn = f' transform="rotate(-90 {x:.2f} {y:.2f})"' if turned else ""
                lines.append(
                    f'<text x="{x:.2f}" y="{y:.2f}" fill="{colour}" text-anchor="{anchor}"{turn}>{escape(said)}</text>'
                )
        return "\n".join([*lines, "</svg>"]) + "\n"

    def pdf(self) -> bytes:
        """One page; letters outside of Windows' Western encoding become question marks."""
        commands = [f"1 0 0 -1 0 {self.height:g} cm 1 J 1 j"]
        for kind, *values in self.parts:
            if kind == "line":
                points, colour, width, dash = values
                path = " ".join(f"{x:.2f} {y:.2f} {'l' if at else 'm'}" for at, (x, y) in enumerate(points))
                commands.append(f"{_rgb(colour)} RG {width} w [{dash.replace(',', ' ')}] 0 d {path} S")
            elif kind == "circle":
                x, y, r, colour, filled = values
                k = 0.5523 * r  # four Bezier curves
                curves = (
                    f"{x + r:.2f} {y:.2f} m {x + r:.2f} {y + k:.2f} {x + k:.2f} {y + r:.2f} {x:.2f} {y + r:.2f} c "
                    f"{x - k:.2f} {y + r:.2f} {x - r:.2f} {y + k:.2f} {x - r:.2f} {y:.2f} c "
                    f"{x - r:.2f} {y - k:.2f} {x - k:.2f} {y - r:.2f} {x:.2f} {y - r:.2f} c "
                    f"{x + k:.2f} {y - r:.2f} {x + r:.2f} {y - k:.2f} {x + r:.2f} {y:.2f} c"
                )
                inside = _rgb(colour if filled else "#ffffff")
                commands.append(f"{_rgb(colour)} RG {inside} rg 1 w [] 0 d {curves} b")
            else:
                x, y, said, colour, anchor, turned = values
                shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * _text_width(said)
                x, y = (x, y + shift) if turned else (x - shift, y)
                matrix = f"0 -1 -1 0 {x:.2f} {y:.2f}" if turned else f"1 0 0 -1 {x:.2f} {y:.2f}"
                commands.append(f"BT {_rgb(colour)} rg /F 9 Tf {matrix} Tm ({_pdf_text(said)}) Tj ET")
        stream = "\n".join(commands).encode("cp1252")
        objects = [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {self.width:g} {self.height:g}] /Contents 4 0 R "
            "/Resources << /Font << /F 5 0 R >> >> >>".encode(),
            b"<< /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream),
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        ]
        out, offsets = b"%PDF-1.4\n", []
        for number, content in enumerate(objects, 1):
            offsets.append(len(out))
            out += b"%d 0 obj\n%b\nendobj\n" % (number, content)
        table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
        count = len(objects) + 1
        end = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (count, len(out))
        return out + b"xref\n0 %d\n0000000000 65535 f \n" % count + table + end


def _rgb(colour: str) -> str:
    return " ".join(f"{int(colour[at : at + 2], 16) / 255:.3f}" for at in (1, 3, 5))


def _text_width(text: str) -> float:
    """About the width of a text in Helvetica of 9 points."""
    return 9 * sum(0.28 if letter in " .,:;'ijlt|" else 0.556 for letter in text)


def _pdf_text(text: str) -> str:
    shown = text.encode("cp1252", "replace").decode("cp1252")
    return shown.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


def figure(rows: Sequence[Mapping[str, Any]], cost: str, quality: str, log: bool | None) -> Drawing:
    """Draws the rows of a table: filled points on the frontier, intervals, and a numbered key below.

    The cost has a logarithmic axis with `log`, by default where it spans a factor of six. Raises SpecError for a
    column without numbers, and if no row has both figures.
    """
    best = {row["sampler"] for row in frontier(rows, cost, quality)}  # checks the columns
    points = [(number, row) for number, row in enumerate(rows, 1) if row[cost] is not None and row[quality] is not None]
    if not points:
        raise SpecError(f"no sampler has both {cost} and {quality}", hint="name other columns, or score the answers")
    x = _Axis([row for _, row in points], cost, _LEFT, _WIDTH - _RIGHT, log)
    y = _Axis([row for _, row in points], quality, _HEIGHT - _BOTTOM, _TOP, False)
    drawing = Drawing(_WIDTH, _HEIGHT + _LINE * len(points) + 4)
    for tick in y.ticks:
        drawing.line([(_LEFT, y.at(tick)), (_WIDTH - _RIGHT, y.at(tick))], _GRID, 0.5)
        drawing.text(_LEFT - 5, y.at(tick) + 3, y.shown(tick), _SOFT, "end")
    for tick in x.ticks:
        drawing.line([(x.at(tick), _TOP), (x.at(tick), _HEIGHT - _BOTTOM)], _GRID, 0.5)
        drawing.text(x.at(tick), _HEIGHT - _BOTTOM + 12, x.shown(tick), _SOFT, "middle")
    drawing.text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - _BOTTOM + 28, x.title, _INK, "middle")
    drawing.text(11, (_TOP + _HEIGHT - _BOTTOM) / 2, y.title, _INK, "middle", turned=True)
    on = sorted((x.at(row[cost]), y.at(row[quality])) for _, row in points if row["sampler"] in best)
    if len(on) > 1:
        # Between two points the quality is that of the cheaper one.
        corners = [(a[0], b[1]) if cost in GAINS else (b[0], a[1]) for a, b in pairwise(on)]
        steps = [on[0], *(each for corner, point in zip(corners, on[1:], strict=True) for each in (corner, point))]
        drawing.line(steps, _BLUE, 1, "4,3")
    for number, row in points:
        left, top = x.at(row[cost]), y.at(row[quality])
        colour = _BLUE if row["sampler"] in best else _SOFT
        for axis, low, high in ((x, *x.ends(row)), (y, *y.ends(row))):
            ends = (axis.at(low), axis.at(high))
            if low != high:
                drawing.line([(end, top) if axis is x else (left, end) for end in ends], colour, 0.6)
        drawing.circle(left, top, 3, colour, filled=row["sampler"] in best)
        drawing.text(left + 5, top - 4, str(number), colour)
    for at, (number, row) in enumerate(points):
        drawing.text(_LEFT, _HEIGHT + _LINE * at + 6, f"{number}  {row['sampler']}", _INK)
    return drawing


class _Axis:
    """Maps a figure to a line of the page, and has its ticks."""

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], key: str, start: float, stop: float, log: bool | None
    ) -> None:
        self.key, self.start, self.stop = key, start, stop
        values = [value for row in rows for value in (row[key], *self.ends(row))]
        low, high = min(values), max(values)
        self.log = low > 0 and (high > 6 * low if log is None else log)
        column = {column.key: column for column in COLUMNS}.get(key)
        self.title = column.title if column else key
        self.shown = percent if key in ("accuracy", "lenient", "agreement", "identical", "floor_share") else plain
        if self.log:
            self.low, self.high = low / 1.2, high * 1.2
            self.ticks = log_ticks(self.low, self.high)
        else:
            pad = ((high - low) or abs(high) or 1.0) * 0.08
            self.low, self.high = low - pad, high + pad
            self.ticks = ticks(self.low, self.high)
            if self.shown is percent:
                self.ticks = [tick for tick in self.ticks if 0 <= tick <= 1]

    def ends(self, row: Mapping[str, Any]) -> tuple[float, float]:
        low, high = (row.get(f"{self.key}_{end}") for end in ("low", "high"))
        return (row[self.key] if low is None else low, row[self.key] if high is None else high)

    def at(self, value: float) -> float:
        low, high, value = (math.log(each) if self.log else each for each in (self.low, self.high, value))
        return self.start + (self.stop - self.start) * (value - low) / (high - low)


# The figures that are better when they are larger; for all others, smaller is better.
GAINS = {column.key for column in COLUMNS if column.better == "high"}


def frontier(rows: Sequence[Mapping[str, Any]], cost: str, quality: str) -> list[dict[str, Any]]:
    """The rows that no other row dominates (at least as good in both figures and better in one), cheapest first.

    A figure such as tokens per second may be the cost: larger is better then. Rows that are equal in both figures are
    all included; rows that lack one of them are left out. Raises SpecError for a column without numbers.
    """
    for name in (cost, quality):
        figures = [key for key, value in rows[0].items() if not isinstance(value, str | dict | list)] if rows else []
        if rows and name not in figures:
            raise SpecError(
                f"no column {name!r} has numbers{did_you_mean(name, figures)}",
                hint=f"such columns: {', '.join(figures)}",
            )
    sign = {name: 1 if name in GAINS else -1 for name in (cost, quality)}
    points = [
        (sign[cost] * row[cost], sign[quality] * row[quality], row)
        for row in rows
        if row[cost] is not None and row[quality] is not None
    ]
    best = [(x, row) for x, y, row in points if not any(a >= x and b >= y and (a > x or b > y) for a, b, _ in points)]
    return [dict(row) for _, row in sorted(best, key=lambda point: -point[0])]
