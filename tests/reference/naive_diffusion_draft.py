"""FailFast's drafting loop from the paper, for one text: no cache, no batch, one position after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor


def draft(
    predict: Callable[[list[int], int], Tensor],
    text: Sequence[int],
    *,
    mask: int,
    most: int,
    step: int = 10,
    low: float = 0.45,
    tau: float = 0.05,
    small: int = 8,
    block: int = 32,
    absolute: bool = False,
) -> tuple[list[int], int]:
    """The drafted tokens, and the number of forwards.

    Args:
        predict: (canvas, position) -> [V] probabilities there.
        absolute: blocks are counted from position 0 (block-causal), not from the end of the text.
    """
    known, forwards = list(text), 0
    origin = 0 if absolute else len(text)
    while len(known) < len(text) + most:
        goal = min(len(known) + step, len(text) + most)
        end = origin + -(-(goal - origin) // block) * block
        canvas = known + [mask] * (end - len(known))
        sure = True
        while open_ := [at for at in range(len(known), goal) if canvas[at] == mask]:
            group = [at for at in open_ if (at - origin) // small == (open_[0] - origin) // small]
            found = {}
            for at in group:
                probabilities = predict(canvas, at).clone()
                probabilities[mask] = 0
                found[at] = (float(probabilities.max() / probabilities.sum()), int(probabilities.argmax()))
            top = max(group, key=lambda at: (found[at][0], -at))
            forwards += 1
            for at in group:
                confidence, token = found[at]
                if confidence >= tau or at == top:
                    canvas[at] = token
                    sure = sure and confidence >= low
        known = canvas[:goal]
        if not sure:
            break
    return known[len(text) :], forwards
