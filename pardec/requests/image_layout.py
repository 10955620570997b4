"""Constraints from an image family's token grid: codes in its cells, fixed tokens between and after its rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pardec.models.errors import SpecError
from pardec.models.images.contracts import ImageLayout
from pardec.samplers.request import Allowed

from .prompts import Row


def intersect(layout: ImageLayout, allowed: Allowed | None, rows: Sequence[Row], vocabulary: int) -> Allowed | None:
    """The intersection of `allowed` with the layout's constraints; `allowed` itself if the layout has none.

    Raises SpecError where it is empty.
    """
    if layout.plain:
        return allowed
    forced = layout.forced()
    codes = torch.ones(vocabulary, dtype=torch.bool)
    if layout.ids is not None:
        codes = torch.zeros_like(codes).index_fill_(0, layout.ids.cpu(), True)
    outer = torch.ones(1, vocabulary, dtype=torch.bool) if allowed is None else allowed.sets.cpu()
    sets, indices = [torch.ones_like(codes)], dict[tuple[int, int], int]()
    at = []
    for number, row in enumerate(rows):
        start = len(row.prompt)
        before = torch.zeros(start + len(forced), dtype=torch.int64) if allowed is None else allowed.at[number].cpu()
        after = torch.zeros_like(before)
        for index, token in enumerate(forced.tolist()):
            key = int(before[start + index]), token
            if key not in indices:
                own = codes if token < 0 else torch.zeros_like(codes).index_fill_(0, torch.tensor([token]), True)
                both = own & outer[key[0]]
                if not both.any():
                    what = "a code" if token < 0 else f"token {token}"
                    raise SpecError(
                        f"allowed leaves nothing at index {index} of row {number}, where {what} has to be",
                        hint=f"a row of an image has {layout.columns} codes in {layout.stride} tokens",
                    )
                indices[key] = len(sets)
                sets.append(both)
            after[start + index] = indices[key]
        at.append(after)
    return Allowed(torch.stack(sets).to(allowed.sets.device if allowed is not None else "cpu"), tuple(at))
