"""Trees of paths: their text form, and their levels.

The constants are the trees published for Medusa's heads, and EAGLE's first one: paths of child ranks, one digit per
rank.

Each was grown greedily from measured hit rates; `stage2` is for heads that were trained together with their target.
From FasterDecoding/Medusa (`medusa_choices.py`), and for EAGLE from SafeAILab/EAGLE (`choices.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pardec.models.errors import SpecError, did_you_mean

from ...host_transfer import upload
from ...spec_values import MAX_INT_PARAM
from ..ops.trees import Path, Template

_DIGITS = {
    "mc_sim_7b_63": (
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 20 21 22 30 31 40 50 60 70 80 90 "
        "000 001 002 003 004 005 006 007 008 009 010 011 012 020 021 030 040 050 060 070 100 101 200 0000 0001"
    ),
    "vicuna_7b_stage2": (
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 20 21 30 31 40 50 60 70 000 001 002 003 "
        "004 005 006 007 008 010 011 012 013 020 021 030 040 050 100 101 102 110 200 0000 0001 0002 0003 0010 0020 "
        "0100"
    ),
    "vicuna_7b_stage1_ablation": (
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 20 21 30 31 40 50 60 000 001 002 003 004 "
        "005 006 007 008 009 010 011 012 013 020 021 030 040 050 100 101 102 110 200 300 0000 0001 0002 0003 0010 "
        "0020 0100"
    ),
    "vicuna_7b_stage1": (
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 20 21 22 23 30 31 32 40 41 50 51 "
        "60 70 80 90 000 001 002 003 004 005 006 007 008 010 011 012 020 021 030 040 050 100 101 200 0000"
    ),
    "vicuna_13b_stage2": (
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 20 21 30 40 50 000 001 002 003 004 005 006 "
        "007 008 009 010 011 012 013 020 021 030 040 050 100 101 102 110 200 300 0000 0001 0002 0003 0010 0011 "
        "0020 0100 1000"
    ),
    "vicuna_13b_stage1": (
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 20 21 22 23 30 31 40 41 50 60 70 "
        "80 000 001 002 003 004 005 006 007 008 009 010 011 012 013 020 021 030 040 050 100 101 110 200 0000"
    ),
    "vicuna_33b_stage2": (
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 20 21 22 30 31 40 50 60 70 000 001 002 "
        "003 004 005 006 007 008 009 010 011 012 013 020 021 030 040 050 100 101 102 110 200 0000 0001 0002 0010 "
        "0100"
    ),
    "vicuna_33b_stage1": (
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 17 20 21 22 23 24 30 31 32 40 41 "
        "50 51 60 70 80 90 000 001 002 003 004 005 006 007 008 010 011 012 020 021 030 040 100 101 200"
    ),
    "zephyr_stage2": (
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 20 21 22 23 30 31 40 41 50 60 70 000 "
        "001 002 003 004 005 006 007 008 009 010 011 012 013 020 021 030 040 050 100 101 110 200 0000 0001 0010"
    ),
    "eagle_mc_sim_7b_63": (
        "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
    ),
}
TREES: dict[str, tuple[tuple[int, ...], ...]] = {
    name: tuple(tuple(map(int, path)) for path in text.split()) for name, text in _DIGITS.items()
}


@dataclass(frozen=True, eq=False)
class Level:
    """The N nodes of one depth, and their K parents."""

    parents: Tensor  # [K] indices in the tree
    column: Tensor  # [N] index of the parent in `parents`
    rank: Tensor  # [N]
    children: int  # the most children of one parent


@cache
def tree_levels(text: str, device: torch.device) -> tuple[Template, tuple[Level, ...]]:
    tree = Template.of(read_tree(text))  # on the host
    levels = []
    for nodes in tree.levels:
        above: Any = tree.parents[nodes]
        parents, column = above.unique(return_inverse=True)
        ranks = tree.ranks[nodes]
        at, under, order = (upload(each, device) for each in (parents, column, ranks))
        levels.append(Level(at, under, order, int(ranks.max()) + 1))
    return tree.to(device), tuple(levels)


@cache
def read_tree(text: str) -> tuple[Path, ...]:
    """The sorted paths of a tree. Raises SpecError for text that is no tree."""
    if text in TREES:
        return TREES[text]
    if any(mark.isalpha() for mark in text):
        raise SpecError(
            f"paths: there is no published tree {text!r}{did_you_mean(text, TREES)}",
            hint=f"they are {', '.join(TREES)}; or write paths: tree=0-1-0.0",
        )
    ranks = [path.split(".") for path in text.split("-")]
    digits = len(str(MAX_INT_PARAM))
    if not all(
        rank.isdecimal() and len(rank) <= digits and int(rank) < MAX_INT_PARAM for path in ranks for rank in path
    ):
        raise SpecError(
            f"paths: tree lists paths joined by '-', and the ranks of a path joined by '.', got {text!r}",
            hint="tree=0-1-0.0-0.1 is two children of the last token, and two of the first of these",
        )
    paths = [tuple(map(int, path)) for path in ranks]
    known = set(paths)
    for path in paths:
        parent, lower = path[:-1], (*path[:-1], path[-1] - 1)
        needed = [*([parent] if parent else []), *([lower] if path[-1] else [])]
        if missing := [_text(each) for each in needed if each not in known]:
            raise SpecError(
                f"paths: tree has the path {_text(path)} without {missing[0]}, which is at least as likely",
                hint=f"add {missing[0]}, or leave {_text(path)} out",
            )
    if len(known) < len(paths):
        twice = max(paths, key=paths.count)
        raise SpecError(f"paths: tree has the path {_text(twice)} twice", hint="name each once")
    return tuple(sorted(paths, key=lambda path: (len(path), path)))


def _text(path: Path) -> str:
    return ".".join(map(str, path))


def tree_text(paths: Iterable[Path]) -> str:
    """The text of paths, as the parameter `tree` takes it.

    >>> tree_text(((0,), (1,), (0, 0)))
    '0-1-0.0'
    """
    return "-".join(map(_text, sorted(paths, key=lambda path: (len(path), path))))
