"""Makes the README's two figures, from embedded models and committed benchmarks, in half a minute on a CPU.

    python scripts/readme_figures.py

- `docs/images/canvas.gif`: tiny-dream fills two canvases, first one token per forward, then with `threshold`.
- `docs/images/frontier.svg`: accuracy against forwards of every sampler in `benchmarks/samplers.json`.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image, ImageSequence

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images"

PROMPTS = [
    "Fill in the record: The pilot called Lena is 72.",
    "Tom has 18 cups. He loses 4. He finds 12 cups. How many cups does Tom have now?",
]
ANIMATED = {"sequential": 220, "threshold:tau=0.9": 1200}  # sampler -> milliseconds that a frame stays
LAST = 3000  # and the last frame of each

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 62, 20, 108, 52
LOWEST = 70  # per cent, at the foot of the vertical axis
# Where the label of a point stands: dx and dy from its centre, and which end of the text is there.
LABELS: Mapping[str, tuple[str, float, float, str]] = {
    "sequential": ("sequential", 6, -10, "end"),
    "timesteps:steps=64": ("two tokens per forward", 6, -10, "end"),
    "leftmost+sequential": ("left to right", 0, 20, "middle"),
    "random+fixed": ("random order", -10, 4, "end"),
    "origin:steps=64": ("origin", -10, 4, "end"),
    "klass": ("klass", 0, 20, "middle"),
    "threshold:tau=0.9+remdm": ("threshold + remdm", 10, 5, "start"),
    "threshold:tau=0.98": ("threshold:tau=0.98", 10, -14, "start"),
    "threshold:tau=0.9@vicinity:warmup=0": ("threshold:tau=0.9 @vicinity", 0, -42, "middle"),
    "entropy_bound": ("entropy_bound", 8, 17, "start"),
    "credit+threshold:tau=0.9+localleap@dual": ("credit + threshold + localleap @dual", 8, 17, "start"),
    "oracle": ("oracle", -2, -14, "end"),
}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    animate(FOLDER / "canvas.gif")
    (FOLDER / "frontier.svg").write_text(plot(json.loads((ROOT / "benchmarks" / "samplers.json").read_text())))
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
                pages = [frame.convert("RGB").quantize(64) for frame in ImageSequence.Iterator(one)]
            frames += pages
            durations += [duration] * (len(pages) - 1) + [LAST]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)


def plot(measured: Mapping[str, Any]) -> str:
    """A point for each sampler. Dark text on a white ground, which reads on light and dark pages alike."""
    rows = measured["rows"]
    ideal = {row["sampler"] for row in rows if row["sampler"].startswith("oracle")}  # they know the final text
    best = frontier([row for row in rows if row["sampler"] not in ideal])
    low, high = 0.85, 40.0

    def across(forwards: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(forwards / low) / math.log(high / low)

    def up(share: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (101 - 100 * share) / (101 - LOWEST)

    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff" stroke="#d0d7de"/>',
        _text(LEFT, 24, f"{measured['problems']} held-out problems of {measured['task']}, {measured['model']}", 15),
        *_key(),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "forwards per problem (log scale)", anchor="middle"),
        f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        "answers exactly right</text>",
    ]
    for share in range(LOWEST, 101, 10):
        parts.append(_line(LEFT, up(share / 100), WIDTH - RIGHT, up(share / 100)))
        parts.append(_text(LEFT - 8, up(share / 100) + 4, f"{share}%", anchor="end"))
    for forwards in (1, 2, 4, 8, 16, 32):
        parts.append(_line(across(forwards), HEIGHT - BOTTOM, across(forwards), HEIGHT - BOTTOM + 5))
        parts.append(_text(across(forwards), HEIGHT - BOTTOM + 19, str(forwards), anchor="middle"))
    for row in sorted(rows, key=lambda row: row["sampler"] in best):
        name, x, y = row["sampler"], across(row["nfe"]), up(row["exact"])
        if name in LABELS:
            label, dx, dy, anchor = LABELS[name]
            if math.hypot(dx, dy) > 24:
                parts.append(_line(x, y, x + dx, y + dy + 3, "#8c959f"))
            parts.append(_text(x + dx, y + dy, label, anchor=anchor))
        said = f"{name}: {100 * row['exact']:.1f}% in {row['nfe']:.2f} forwards"
        parts.append(_mark(x, y, "ideal" if name in ideal else "best" if name in best else _kind(name), said))
    title = f"{measured['task']}: accuracy against forwards of {len(rows)} samplers"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif" font-size="12" fill="#1f2328" '
        f'role="img"><title>{escape(title)}</title>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def frontier(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """The samplers that no other one equals or beats in both figures and beats in one."""

    def beaten(row: Mapping[str, Any]) -> bool:
        at = row["nfe"], -row["exact"]
        others = ((other["nfe"], -other["exact"]) for other in rows)
        return any(other != at and other[0] <= at[0] and other[1] <= at[1] for other in others)

    return {row["sampler"] for row in rows if not beaten(row)}


def _kind(name: str) -> str:
    return "cached" if "@" in name else "plain"


def _key() -> list[str]:
    entries = (
        ("best", "on the frontier", 0),
        ("plain", "no cache", 118),
        ("cached", "with a cache (@...)", 196),
        ("ideal", "oracle, which knows the final text", 336),
    )
    parts = []
    for kind, label, left in entries:
        parts += [_mark(LEFT + left + 5, 44, kind, label), _text(LEFT + left + 15, 48, label)]
    return parts


def _mark(x: float, y: float, kind: str, said: str) -> str:
    style = {
        "best": 'r="6" fill="#d1570a" stroke="#ffffff"',
        "plain": 'r="4.5" fill="#0969da" stroke="#ffffff"',
        "cached": 'r="4" fill="#ffffff" stroke="#0969da" stroke-width="1.6"',
        "ideal": 'r="4" fill="#ffffff" stroke="#6e7781" stroke-width="1.6" stroke-dasharray="2 1.5"',
    }[kind]
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" {style}><title>{escape(said)}</title></circle>'


def _line(x: float, y: float, to_x: float, to_y: float, colour: str = "#d8dee4") -> str:
    return f'<path d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, label: str, size: int = 12, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(label)}</text>'


if __name__ == "__main__":
    main()
