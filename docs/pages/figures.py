"""Small drawings of benchmark figures, as SVG that takes its colours from the page."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 260, 56, 16, 14, 44


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    name: str
    chosen: bool


def _raw(svg: str) -> str:
    return f"```{{raw}} html\n{svg}\n```"


def scatter(points: Sequence[Point], x: str, y: str) -> str:
    """Points over a logarithmic x axis, the chosen ones in colour and named when pointed at."""
    low, high = min(p.x for p in points) / 1.15, max(p.x for p in points) * 1.15
    bottom, top = min(p.y for p in points), max(p.y for p in points)
    pad = (top - bottom or 1) * 0.08
    bottom, top = bottom - pad, top + pad

    def across(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / low) / math.log(high / low)

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - bottom) / (top - bottom)

    parts = [_axes(x, y)]
    for value in (v for v in (1, 2, 3, 5, 10, 20, 30, 50, 100, 200) if low <= v <= high):
        parts.append(f'<text class="tick" x="{across(value):.1f}" y="{HEIGHT - BOTTOM + 16}">{value}</text>')
        parts.append(_line(across(value), HEIGHT - BOTTOM, across(value), HEIGHT - BOTTOM + 4))
    for value in _ticks(bottom, top):
        parts.append(f'<text class="tick left" x="{LEFT - 8}" y="{up(value) + 4:.1f}">{value:g}</text>')
        parts.append(_line(LEFT - 4, up(value), LEFT, up(value)))
    for p in sorted(points, key=lambda p: p.chosen):
        kind = "chosen" if p.chosen else "other"
        said = html.escape(f"{p.name}: {p.x:g}, {p.y:g}")
        parts.append(
            f'<circle class="{kind}" cx="{across(p.x):.1f}" cy="{up(p.y):.1f}" r="{5 if p.chosen else 3.5}">'
            f"<title>{said}</title></circle>"
        )
    return _raw(_svg(HEIGHT, parts, f"{y} over {x}"))


def bars(rows: Sequence[tuple[str, float]], x: str) -> str:
    """Horizontal bars from 0, each with its name and number; with a dashed line at 1."""
    left, step = 324, 22
    most = max(1.0, *(value for _, value in rows))
    scale = (WIDTH - left - 60) / most
    height = step * len(rows) + 34
    parts = []
    for number, (name, value) in enumerate(rows):
        y = 6 + step * number
        parts.append(f'<text class="name" x="{left - 8}" y="{y + 13}">{html.escape(name)}</text>')
        parts.append(f'<rect class="chosen" x="{left}" y="{y}" width="{value * scale:.1f}" height="{step - 6}"/>')
        parts.append(f'<text class="value" x="{left + value * scale + 6:.1f}" y="{y + 13}">{value:g}</text>')
    at, foot = left + scale, 6 + step * len(rows)
    parts.append(f'<line class="one" x1="{at:.1f}" y1="2" x2="{at:.1f}" y2="{foot}"/>')
    parts.append(f'<text class="tick" x="{(left + WIDTH) / 2}" y="{foot + 20}">{html.escape(x)}</text>')
    return _raw(_svg(height, parts, x))


def _ticks(low: float, high: float) -> list[float]:
    step = 10 ** math.floor(math.log10((high - low) / 2))
    step = next((step * by for by in (1, 2, 5, 10) if (high - low) / (step * by) <= 6), step)
    first = math.ceil(low / step)
    return [round((first + i) * step, 6) for i in range(int((high - first * step) / step) + 1)]


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="axis" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _axes(x: str, y: str) -> str:
    foot = HEIGHT - BOTTOM
    return (
        _line(LEFT, TOP, LEFT, foot)
        + _line(LEFT, foot, WIDTH - RIGHT, foot)
        + f'<text class="tick" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}">{html.escape(x)}</text>'
        + f'<text class="tick" transform="translate(14 {(TOP + foot) / 2}) rotate(-90)">{html.escape(y)}</text>'
    )


def _svg(height: int, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg class="figure" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(label)}">'
        + "".join(parts)
        + "</svg>"
    )
