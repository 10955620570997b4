"""Draws the figures of the concept pages: `python docs/drawings.py` writes docs/drawings/*.svg.

A drawing in a page has the page's colours; alone, it has light ones.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "drawings"
INK = "var(--color-foreground-primary,#1f2328)"
SOFT = "var(--color-foreground-secondary,#57606a)"
EDGE = "var(--color-foreground-border,#8c959f)"
EMPTY = "var(--color-background-secondary,#f6f8fa)"
ACCENT = "var(--color-brand-primary,#0a4bff)"
MONO = "font-family:var(--font-stack--monospace,monospace)"


def text(
    x: float, y: float, said: str, *, size: int = 12, colour: str = INK, anchor: str = "start", more: str = ""
) -> str:
    style = f"font-size:{size}px;fill:{colour};text-anchor:{anchor};{more}"
    return f'<text x="{x:g}" y="{y:g}" style="{style}" xml:space="preserve">{escape(said)}</text>'


def box(
    x: float, y: float, w: float, h: float, *, fill: str = EMPTY, alpha: float = 1, edge: str = EDGE, dash: str = ""
) -> str:
    style = f"fill:{fill};fill-opacity:{alpha:g};stroke:{edge};stroke-width:1;stroke-dasharray:{dash or 'none'}"
    return f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="3" style="{style}"/>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """An arrow, horizontal or vertical."""
    dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
    corners = ((x2, y2), (x2 - 7 * dx - 4 * dy, y2 - 7 * dy - 4 * dx), (x2 - 7 * dx + 4 * dy, y2 - 7 * dy + 4 * dx))
    head = " ".join(f"{x:g},{y:g}" for x, y in corners)
    line = f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" style="stroke:{SOFT}"/>'
    return f'{line}<polygon points="{head}" style="fill:{SOFT}"/>'


def save(name: str, width: int, height: int, label: str, parts: Sequence[str]) -> None:
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(label)}" style="font-family:var(--font-stack,sans-serif)">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
    (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")


def canvas() -> None:
    """A real decode: the canvas after each forward of `fixed:steps=5`."""
    import pardec

    model = pardec.load("tiny-dream", device="cpu")
    question = "Tom has 18 cups. He loses 4. He finds 12 cups. How many cups does Tom have now?"
    result = model.generate(question, sampler="fixed:steps=5", max_new_tokens=24)
    start, pieces = result.prompts[0], result.pieces[0]
    width = 28
    parts = [
        text(8, 16, "forward", size=11, colour=SOFT),
        text(70, 16, "the 24 positions after the prompt", size=11, colour=SOFT),
    ]
    known: set[int] = set()
    for number, step in enumerate([None, *result.trace.steps[0]]):
        y = 26 + 32 * number
        new = set() if step is None else set(step.positions)
        known |= new
        parts.append(text(8, y + 17, "start" if step is None else str(number), colour=SOFT))
        for column in range(24):
            position = start + column
            fill, alpha = (ACCENT, 0.28) if position in new else (EMPTY, 1)
            parts.append(
                box(
                    70 + width * column,
                    y,
                    width - 3,
                    25,
                    fill=fill,
                    alpha=alpha,
                    dash="" if position in known else "2 2",
                )
            )
            if position in known:
                said = pieces[position].strip().replace("<eos>", "end").replace("answer", "ans.")
                parts.append(
                    text(70 + width * column + (width - 3) / 2, y + 17, said, size=11, anchor="middle", more=MONO)
                )
    save("canvas", 70 + width * 24 + 8, 26 + 32 * 6, "A canvas after each of five forwards", parts)


def _chain(y: float, names: Sequence[tuple[str, str]], *, forward: str, left: float = 8) -> list[str]:
    width, parts = 84, []
    for number, (name, said) in enumerate(names):
        x = left + (width + 18) * number
        model = name == forward
        parts.append(box(x, y, width, 34, fill=ACCENT if model else EMPTY, alpha=0.28 if model else 1))
        parts.append(text(x + width / 2, y + 22, name, anchor="middle", more="" if model else MONO))
        for row, line in enumerate(said.split("\n")):
            parts.append(text(x + width / 2, y + 50 + 13 * row, line, size=10, colour=SOFT, anchor="middle"))
        if number:
            parts.append(arrow(x - 17, y + 17, x - 2, y + 17))
    return parts


def stages() -> None:
    masked = [
        ("cache", "which positions\nare computed"), ("inputs", "input\nembeddings"), ("forward", "the model"),
        ("logits", "change the\nlogits"), ("propose", "token and\nscore"), ("select", "what to\ncommit"),
        ("widen", "what else"), ("revise", "what to\ntake back"), ("finish", "is the row\ndone?"),
    ]  # fmt: skip
    drafted = [
        ("length", "how many\ntokens"), ("draft", "drafted\ntokens"), ("shape", "chain or\ntree"),
        ("forward", "the target,\nonce"), ("accept", "which stand,\nand the next"),
    ]  # fmt: skip
    vectors = [
        ("forward", "the\ntransformer"),
        ("vectors", "which vectors are\ndrawn, and how"),
        ("head", "a denoising\npath each"),
    ]
    maps = [
        ("forward", "the\ntransformer"),
        ("maps", "every code\nof a map"),
        ("sum", "what the next\nmap is read from"),
    ]
    parts = [text(8, 18, "Masked diffusion models: one step", size=13)]
    parts += _chain(28, masked, forward="forward")
    parts += [text(8, 128, "Autoregressive models: one round", size=13), *_chain(138, drafted, forward="forward")]
    parts += [
        text(8, 238, "Models whose tokens are vectors: one step", size=13),
        *_chain(248, vectors, forward="forward"),
        text(480, 238, "Models of token maps: one map", size=13),
        *_chain(248, maps, forward="forward", left=480),
    ]
    save("stages", 926, 318, "The stages of the four decoding loops", parts)


def caches() -> None:
    """The positions of 24 that a step inside the second block computes, and those that it reads from the cache."""
    groups = [("prompt", 6), ("block 1, done", 6), ("block 2, being decoded", 6), ("block 3, still masked", 6)]
    rows = [("@none", {0, 1, 2, 3}), ("@prefix", {2, 3}), ("@dual", {2}), ("@block", {2})]
    width, left = 26, 78
    parts = []
    for number, (name, count) in enumerate(groups):
        x = left + width * 6 * number
        parts.append(text(x + width * count / 2 - 2, 16, name, size=11, colour=SOFT, anchor="middle"))
    for row, (name, computed) in enumerate(rows):
        y = 28 + 34 * row
        parts.append(text(8, y + 17, name, more=MONO))
        for number in range(4):
            if name == "@block" and number == 3:
                x = left + width * 18
                parts.append(text(x + width * 3 - 2, y + 17, "not seen yet", size=11, colour=SOFT, anchor="middle"))
                continue
            for column in range(6):
                hot = number in computed
                x = left + width * (6 * number + column)
                parts.append(box(x, y, width - 3, 25, fill=ACCENT if hot else EMPTY, alpha=0.45 if hot else 1))
    y = 28 + 34 * len(rows) + 6
    parts += [
        box(left, y, 22, 14, fill=ACCENT, alpha=0.45),
        text(left + 30, y + 11, "computed by this forward", size=11),
    ]
    parts += [box(left + 220, y, 22, 14), text(left + 250, y + 11, "keys and values read from the cache", size=11)]
    save("caches", left + width * 24 + 8, y + 24, "Positions that a forward computes, by cache", parts)


def drafting() -> None:
    """One round of drafting and verification."""
    parts = [text(8, 25, "draft"), text(8, 85, "target"), text(8, 145, "kept")]
    drafted, verdicts = ["+", "12", "=", "28"], ["+", "12", "=", "26"]
    for number, word in enumerate(drafted):
        x = 90 + 88 * number
        parts += [box(x, 8, 72, 28), text(x + 36, 26, word, anchor="middle", more=MONO), arrow(x + 36, 38, x + 36, 64)]
        right = word == verdicts[number]
        parts += [
            box(x, 66, 72, 28, fill=ACCENT, alpha=0.28),
            text(x + 36, 84, verdicts[number], anchor="middle", more=MONO),
        ]
        parts.append(arrow(x + 36, 96, x + 36, 124))
        parts += [
            box(
                x, 126, 72, 28, fill=ACCENT if right else EMPTY, alpha=0.28 if right else 1, dash="" if right else "3 2"
            )
        ]
        parts.append(text(x + 36, 144, verdicts[number], anchor="middle", more=MONO))
        parts.append(
            text(x + 36, 170, "accepted" if right else "the target's own", size=11, colour=SOFT, anchor="middle")
        )
    parts += [text(460, 26, "four tokens, drafted cheaply", size=11, colour=SOFT)]
    parts += [text(460, 84, "one forward scores all of them", size=11, colour=SOFT)]
    parts += [text(460, 144, "four tokens for one forward", size=11, colour=SOFT)]
    save("drafting", 660, 182, "A draft of four tokens, of which three are accepted", parts)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    FOLDER.mkdir(exist_ok=True)
    for draw in (canvas, stages, caches, drafting):
        draw()
