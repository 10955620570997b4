"""Makes the README's two figures, from embedded models and committed benchmarks, in half a minute on a CPU.

    python scripts/readme_figures.py

- `docs/images/canvas.gif`: tiny-dream fills two canvases, first one token per forward, then with `threshold`.
- `docs/images/frontier.svg`: the curves of the first task in `benchmarks/samplers.json`.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image, ImageSequence

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images"

PROMPTS = [
    "Hugo has 55 apples. Olga removes 9. Ravi buys 3. How many remain?",
    "Fill in the record: The pilot called Lena is 72.",
]
ANIMATED = {"sequential": 220, "threshold:tau=0.9": 1200}  # sampler -> milliseconds that a frame stays
LAST = 3000  # milliseconds that the last frame of each stays

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 62, 20, 72, 52
# Curves drawn in colour, with the key's label; all others are thin grey lines.
COLOURS: Mapping[str, tuple[str, str]] = {
    "threshold": ("#d1570a", "threshold"),
    "fixed": ("#6e7781", "fixed"),
    "klass": ("#0969da", "klass"),
    "wino": ("#8250df", "wino"),
    "@dual": ("#1a7f37", "threshold@dual"),
}
OTHER = "#c4cbd3"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    animate(FOLDER / "canvas.gif")
    (FOLDER / "frontier.svg").write_text(
        plot(json.loads((ROOT / "benchmarks" / "samplers.json").read_text())["sections"][0])
    )
    for path in sorted(FOLDER.iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


def animate(path: Path) -> None:
    """One GIF of the same prompts decoded by each sampler, one after the other."""
    import pardec
    from pardec.cli import run

    model = pardec.load("tiny-dream", device="cpu")
    frames: list[Image.Image] = []
    durations: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        for sampler, duration in ANIMATED.items():
            saved = model.generate(PROMPTS, sampler=sampler, max_new_tokens=32).save(f"{folder}/result")
            assert run(["view", str(saved), "--gif", f"{folder}/one.gif"]) == 0
            with Image.open(f"{folder}/one.gif") as one:
                pages = [frame.convert("RGB").quantize(32) for frame in ImageSequence.Iterator(one)]
            frames += pages
            durations += [duration] * (len(pages) - 1) + [LAST]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)


def plot(section: Mapping[str, Any]) -> str:
    """The curves of a task. Dark text on a white ground, which reads on light and dark pages alike."""
    curves = sorted(section["curves"], key=lambda curve: curve["name"] in COLOURS)
    points = [point for curve in curves for point in curve["points"]]
    oracle = {"sampler": "oracle, which knows the final text", **section["oracle"]}
    low = 0.9 * min(point["nfe"] for point in (*points, oracle))
    high = 1.1 * max(point["nfe"] for point in points)
    lowest = 10 * math.floor(10 * min(point["accuracy"] for point in points))  # per cent

    def across(forwards: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(forwards / low) / math.log(high / low)

    def up(share: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (101 - 100 * share) / (101 - lowest)

    def dot(point: Mapping[str, Any], colour: str, fill: str) -> str:
        label = f"{point['sampler']}: {100 * point['accuracy']:.1f}% in {point['nfe']:.2f} forwards"
        at = f'cx="{across(point["nfe"]):.1f}" cy="{up(point["accuracy"]):.1f}"'
        return f'<circle {at} r="4" fill="{fill}" stroke="{colour}"><title>{escape(label)}</title></circle>'

    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff" stroke="#d0d7de"/>',
        _text(LEFT, 24, f"{section['problems']} held-out problems of {section['task']}, {section['model']}", 15),
        *_key(),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "forwards per problem (log scale)", anchor="middle"),
        f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        "answers exactly right</text>",
    ]
    for share in range(lowest, 101, 10):
        parts.append(_line(LEFT, up(share / 100), WIDTH - RIGHT, up(share / 100)))
        parts.append(_text(LEFT - 8, up(share / 100) + 4, f"{share}%", anchor="end"))
    for forwards in (tick for tick in (1, 2, 4, 8, 16, 32, 64, 128, 256) if low <= tick <= high):
        parts.append(_line(across(forwards), HEIGHT - BOTTOM, across(forwards), HEIGHT - BOTTOM + 5))
        parts.append(_text(across(forwards), HEIGHT - BOTTOM + 19, str(forwards), anchor="middle"))
    for curve in curves:
        colour, _ = COLOURS.get(curve["name"], (OTHER, ""))
        path = "L".join(f"{across(point['nfe']):.1f} {up(point['accuracy']):.1f}" for point in curve["points"])
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        parts += [dot(point, "#ffffff", colour) for point in curve["points"]]
    parts.append(dot(oracle, "#1f2328", "#ffffff"))
    title = f"{section['task']}: accuracy against forwards of {len(curves)} methods"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif" font-size="12" fill="#1f2328" '
        f'role="img"><title>{escape(title)}</title>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _key() -> list[str]:
    parts, left = list[str](), float(LEFT)
    for colour, label in (*COLOURS.values(), (OTHER, "other methods"), ("#ffffff", "oracle")):
        edge = "#1f2328" if colour == "#ffffff" else colour
        parts.append(f'<circle cx="{left + 5:.1f}" cy="44" r="4" fill="{colour}" stroke="{edge}"/>')
        parts.append(_text(left + 15, 48, label))
        left += 34 + 7 * len(label)
    return parts


def _line(x: float, y: float, to_x: float, to_y: float, colour: str = "#d8dee4") -> str:
    return f'<path d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, label: str, size: int = 12, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(label)}</text>'


if __name__ == "__main__":
    main()
