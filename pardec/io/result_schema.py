"""The schema of a saved result: the type of each field, and the relations between fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pardec.samplers.spec_values import MAX_INT_PARAM

# A type, None, a tuple of alternatives, a list with the schema of its entries, or an object with its fields.
_SPAN = {"start": int, "stop": int}
_COUNTS = (
    "generated", "nfe", "forward_rows", "tokens_fed", "draft_forwards", "prompts", "seeds", "lengths", "stop_ids",
    "reused",
)  # fmt: skip
_SCHEMA: Mapping[str, Any] = {
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
    "sides": ([int], None),
}
_OPTIONAL = ("forced", "shown", "grid", "stride", "sides", "reused")  # not in files of earlier versions


def check(data: Mapping[str, Any], rows: int, length: int) -> None:
    """Checks the fields of a result of `rows` rows on canvases of `length` tokens, and that they agree.

    Raises:
        KeyError: a field is missing.
        ValueError: a field is wrong; the message names it.
    """
    for name, form in _SCHEMA.items():
        if (name in data or name not in _OPTIONAL) and not _matches(data[name], form):
            raise ValueError(f"{name} has the wrong type for a result")
    by_row = ("tokens", "lengths", "fed", "generated", "nfe", "prompts", "text", "pieces", "shown", "reused")
    for name in by_row:
        if data.get(name) is not None and len(data[name]) != rows:
            raise ValueError(f"{name} has {len(data[name])} rows, expected {rows}")
    for row, (start, end) in enumerate(zip(data["prompts"], data["lengths"], strict=True)):
        generated = len(data["tokens"][row]) or data["generated"][row]
        if not 0 <= start <= start + generated <= end <= length:
            raise ValueError(f"row {row} has {generated} tokens after {start} on a canvas of {end}")
        if data["pieces"] is not None and len(data["pieces"][row]) != end:
            raise ValueError(f"pieces has {len(data['pieces'][row])} texts in row {row}, expected {end}")
        for fed in data["fed"][row]:
            # Drafts may extend past the canvas.
            if isinstance(fed, dict) and not 0 <= fed["start"] <= fed["stop"] <= length + MAX_INT_PARAM:
                raise ValueError(f"fed has {fed} in row {row}, far outside its canvas")
    _check_grid(data, length)


def _check_grid(data: Mapping[str, Any], length: int) -> None:
    """Checks that the grid of image tokens fits into the canvas."""
    grid, stride = data.get("grid"), data.get("stride")
    if grid is None:
        if data.get("drawn"):
            raise ValueError("grid is missing")
        return
    if len(grid) != 2 or min(grid) < 1 or (stride is not None and stride < grid[1]):
        raise ValueError(f"grid is {grid} with a stride of {stride}")
    sides = data.get("sides")
    if sides is not None and (not sides or min(sides) < 1 or [sides[-1]] * 2 != list(grid)):
        raise ValueError(f"sides is {sides} with a grid of {grid}")
    tokens = grid[0] * (stride or grid[1]) if sides is None else sum(side * side for side in sides)
    if max(data["prompts"], default=0) + tokens > length:
        raise ValueError(f"grid has {tokens} tokens, and canvases have {length}")


def _matches(value: Any, form: Any) -> bool:
    """Whether a value matches a schema."""
    if form is None:
        return value is None
    if isinstance(form, tuple):
        return any(_matches(value, one) for one in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(_matches(entry, form[0]) for entry in value)
    if isinstance(form, dict):
        return isinstance(value, dict) and all(
            name in value and _matches(value[name], one) for name, one in form.items()
        )
    return isinstance(value, (int, float) if form is float else form) and not isinstance(value, bool)
