"""What a family of images writes where: only codes in the cells, and the tokens between and behind the rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pardec.models.errors import SpecError
from pardec.models.images.contracts import ImageLayout
from pardec.samplers.request import Allowed

from .prompts import Row


def within(layout: ImageLayout, given: Allowed | None, rows: Sequence[Row], vocabulary: int) -> Allowed | None:
    """What `given` allows of what the layout has; `given` itself where the layout leaves all open.

    Raises SpecError where nothing is left.
    """
    if layout.plain:
        return given
    forced = layout.forced()
    codes = torch.ones(vocabulary, dtype=torch.bool)
    if layout.ids is not None:
        codes = torch.zeros_like(codes).index_fill_(0, layout.ids.cpu(), True)
    asked = torch.ones(1, vocabulary, dtype=torch.bool) if given is None else given.sets.cpu()
    sets, numbers = [torch.ones_like(codes)], dict[tuple[int, int], int]()
    at = []
    for number, row in enumerate(rows):
        start = len(row.prompt)
        wanted = torch.zeros(start + len(forced), dtype=torch.int64) if given is None else given.at[number].cpu()
        made = torch.zeros_like(wanted)
        for index, only in enumerate(forced.tolist()):
            key = int(wanted[start + index]), only
            if key not in numbers:
                own = codes if only < 0 else torch.zeros_like(codes).index_fill_(0, torch.tensor([only]), True)
                left = own & asked[key[0]]
                if not left.any():
                    what = "a code" if only < 0 else f"token {only}"
                    raise SpecError(
                        f"allowed leaves nothing at index {index} of row {number}, where {what} has to stand",
                        hint=f"a row of an image has {layout.columns} codes in {layout.stride} tokens",
                    )
                numbers[key] = len(sets)
                sets.append(left)
            made[start + index] = numbers[key]
        at.append(made)
    return Allowed(torch.stack(sets).to(given.sets.device if given is not None else "cpu"), tuple(at))
