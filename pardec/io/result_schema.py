"""What a saved result has to look like before it is taken for one: the kind of every field, and how they fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pardec.samplers.spec_values import MOST

# A type; None; a tuple of alternatives; a list whose entries have one form; an object with the fields that are named.
_SPAN = {"start": int, "stop": int}
_COUNTS = (
    "generated", "nfe", "forward_rows", "tokens_fed", "draft_forwards", "prompts", "seeds", "lengths", "stop_ids",
)  # fmt: skip
_FORMS: Mapping[str, Any] = {
    **{name: [int] for name in _COUNTS},
    **{name: [[int]] for name in ("clocks", "drafted", "accepted", "forced", "tokens")},
    **dict.fromkeys(("spec", "exact", "model"), str),
    **dict.fromkeys(("settings", "environment"), dict),
    "deviation": [(float, None)],
    "finish": [str],
    "fed": [[(_SPAN, [int])]],
    "text": ([str], None),
    "pieces": ([[str]], None),
    "padding": int,
    "timing": {"total_s": float, "tokens": int},
    "shown": ([(str, int, None)], None),
    "grid": ([int], None),
    "stride": (int, None),
}
_MAY_LACK = ("forced", "shown", "grid", "stride")  # in files of earlier versions


def check(held: Mapping[str, Any], rows: int, length: int) -> None:
    """Holds the fields of a result of `rows` rows and canvases of `length` against their forms and against each other.

    Raises:
        KeyError: a field is missing.
        ValueError: a field is something else; it is named.
    """
    for name, form in _FORMS.items():
        if (name in held or name not in _MAY_LACK) and not _has(held[name], form):
            raise ValueError(f"{name} is not what a result has there")
    by_row = ("tokens", "lengths", "fed", "generated", "nfe", "prompts", "text", "pieces", "shown")
    for name in by_row:
        if held.get(name) is not None and len(held[name]) != rows:
            raise ValueError(f"{name} has {len(held[name])} rows, expected {rows}")
    for row, (start, end) in enumerate(zip(held["prompts"], held["lengths"], strict=True)):
        made = len(held["tokens"][row]) or held["generated"][row]
        if not 0 <= start <= start + made <= end <= length:
            raise ValueError(f"row {row} has {made} tokens behind {start}, and a canvas of {end}")
        if held["pieces"] is not None and len(held["pieces"][row]) != end:
            raise ValueError(f"pieces has {len(held['pieces'][row])} texts in row {row}, expected {end}")
        for fed in held["fed"][row]:
            # Drafts may lie behind the canvas.
            if isinstance(fed, dict) and not 0 <= fed["start"] <= fed["stop"] <= length + MOST:
                raise ValueError(f"fed has {fed} in row {row}, far outside its canvas")
    _check_grid(held, length)


def _check_grid(held: Mapping[str, Any], length: int) -> None:
    """The cells of images lie inside the canvas."""
    grid, stride = held.get("grid"), held.get("stride")
    if grid is None:
        if held.get("drawn"):
            raise ValueError("grid is missing")
        return
    if len(grid) != 2 or min(grid) < 1 or (stride is not None and stride < grid[1]):
        raise ValueError(f"grid is {grid} with a stride of {stride}")
    cells = grid[0] * (stride or grid[1])
    if max(held["prompts"], default=0) + cells > length:
        raise ValueError(f"grid has {cells} cells, and canvases have {length} tokens")


def _has(value: Any, form: Any) -> bool:
    """Whether a value has a form."""
    if form is None:
        return value is None
    if isinstance(form, tuple):
        return any(_has(value, one) for one in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(_has(entry, form[0]) for entry in value)
    if isinstance(form, dict):
        return isinstance(value, dict) and all(name in value and _has(value[name], one) for name, one in form.items())
    return isinstance(value, (int, float) if form is float else form) and not isinstance(value, bool)
