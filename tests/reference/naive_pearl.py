"""PEARL as in its paper: two modes, and lists of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Next = Callable[[Sequence[int]], int]


def pearl(target: Next, drafter: Next, text: Sequence[int], k: int, rounds: int) -> list[list[int]]:
    """The tokens that each round adds to `text`, greedily."""
    text, pending, added = list(text), [], []
    for _ in range(rounds):
        draft: list[int] = []
        while len(draft) < k:  # at the same time as the target
            draft.append(drafter([*text, *pending, *draft]))
        new: list[int] = []
        if pending:  # post-verify
            for token in pending:
                new.append(target([*text, *new]))
                if new[-1] != token:
                    break
        rejected = bool(pending) and new[-1] != pending[len(new) - 1]
        if not rejected:  # x_1 of this draft
            new.append(target([*text, *new]))
        pending = draft[1:] if not rejected and draft[0] == new[-1] else []
        text += new
        added.append(new)
    return added
