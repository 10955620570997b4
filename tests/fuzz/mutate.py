"""Seeded damage: odd values in JSON, in bytes, in tensors and in the strings of a command."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any

DEEP = "@deep@"  # becomes text that nests thousands of times, which json.dumps could not write
WIDE = "@wide@"  # becomes a number of more digits than Python reads

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 7, 40, 361, 2**31, 10**9, 10**12, 10**30, -(10**18), 0.5, -2.5, 1e-320, 1e308,
    math.nan, math.inf, -math.inf, "", " ", "x", "12", "none", "auto", "\ud800", "\x1b[31mred", "\x9b2J", "\x00",
    "<script>alert(1)</script>", "../../etc/passwd", "/etc/passwd", "é\u202eabc", "a" * 1000, [], [1], [-1, 10**9],
    ["a"], [None], [[]], [[1], [2, 3]], {}, {"a": 1}, {"type": "x"}, {"rope_type": "yarn", "factor": "x"}, DEEP, WIDE,
]  # fmt: skip


def text_of(value: Any) -> str:
    """JSON text, with placeholders for deep nesting and long numbers written out."""
    text = json.dumps(value)
    return text.replace(f'"{DEEP}"', "[" * 1200 + "]" * 1200).replace(f'"{WIDE}"', "9" * 6000)


def odd(rng: Random) -> Any:
    """One value that hardly any field accepts."""
    return copy.deepcopy(rng.choice(ODD))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything inside `value`; of long lists only the first and last entries."""
    found: list[tuple[Any, ...]] = []
    if isinstance(value, dict):
        entries: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list):
        entries = [(at, value[at]) for at in sorted({0, 1, len(value) // 2, len(value) - 1}) if 0 <= at < len(value)]
    else:
        return found
    for key, held in entries:
        found += [(*path, key), *places(held, (*path, key))]
    return found


def shaken(rng: Random, value: Any, *, more: Sequence[str] = ()) -> tuple[Any, str]:
    """A copy with one to three entries replaced, left out, doubled or added; and a description of the changes."""
    made, told = copy.deepcopy(value), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if more and rng.random() < 0.3:
            key, new = rng.choice(list(more)), odd(rng)
            made[key] = new
            told.append(f"{key}={str(new)[:40]!r}")
            continue
        known = places(made)
        if not known:
            break
        # A path at every depth alike, or the many numbers of a list would take all the damage.
        depth = rng.choice(sorted({len(path) for path in known}))
        path = rng.choice([path for path in known if len(path) == depth])
        owner = made
        for key in path[:-1]:
            owner = owner[key]
        what = rng.choice(("set", "set", "set", "drop", "double"))
        if what == "drop":
            del owner[path[-1]]
        elif what == "double" and isinstance(owner, list):
            owner.append(copy.deepcopy(owner[path[-1]]))
        else:
            owner[path[-1]] = odd(rng)
        told.append(f"{what} {'.'.join(map(str, path))}")
    return made, "; ".join(told)


def bytes_of(rng: Random, data: bytes, within: int | None = None) -> tuple[bytes, str]:
    """The bytes cut short, overwritten, repeated, emptied or in another encoding; only the first `within` change."""
    end = min(within or len(data), len(data))
    at = rng.randrange(max(end, 1))
    kind = rng.choice(("cut", "flip", "flip", "insert", "empty", "bom", "utf16", "zeros", "noise", "twice"))
    if kind == "cut":
        return data[:at], f"cut at {at}"
    if kind == "flip":
        made = bytearray(data)
        for _ in range(rng.choice((1, 2, 8))):
            made[rng.randrange(max(end, 1)) % max(len(made), 1)] = rng.randrange(256)
        return bytes(made), "flipped"
    if kind == "insert":
        return data[:at] + rng.randbytes(rng.choice((1, 4, 40))) + data[at:], f"inserted at {at}"
    if kind == "empty":
        return b"", "empty"
    if kind == "bom":
        return b"\xef\xbb\xbf" + data, "with a byte order mark"
    if kind == "utf16":
        return data[:4096].decode("latin-1").encode("utf-16"), "in UTF-16"
    if kind == "zeros":
        return data[:at] + b"\0" * 64 + data[at + 64 :], f"zeros at {at}"
    if kind == "noise":
        return rng.randbytes(200), "noise"
    return data + data, "twice"
