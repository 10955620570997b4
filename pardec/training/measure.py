"""Measures a drafter's tokens per round on texts outside of its training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .networks import Network
from .states import States, Text

_TOKENS = 6000  # tokens of one batch


@dataclass(frozen=True)
class Acceptance:
    """The acceptance of greedy chains on the target's greedy texts."""

    length: float  # tokens per round, the target's own included
    depths: tuple[float, ...]  # share of the positions at which the first j drafted tokens are all right
    rounds: int


def measure(network: Network, states: States, texts: Sequence[Text], drafts: int) -> Acceptance:
    """Follows every text as decoding would: a round drafts `drafts` tokens, keeps the right ones and adds one."""
    tokens = rounds = positions = 0
    right = torch.zeros(drafts)
    remaining = sorted((text for text in texts if text.length - text.prompt > 1), key=lambda text: text.length)
    while remaining:
        count = max(1, _TOKENS // remaining[-1].length)
        part, remaining = remaining[-count:], remaining[:-count]
        batch = states.batch(part)
        drafted = network.chain(batch, drafts)  # [B, W, k]
        width = batch.width
        follows = torch.stack(
            [torch.nn.functional.pad(batch.ids[:, 2 + j :], (0, min(2 + j, width)), value=-2) for j in range(drafts)],
            -1,
        )
        accepted = (drafted == follows).long().cumprod(-1).cpu()  # [B, W, k]
        for row, text in enumerate(part):
            last = text.length - 1
            known = accepted[row, text.prompt - 1 : last - drafts]
            right += known.sum(0)
            positions += len(known)
            lengths = accepted[row].sum(-1).tolist()
            at = text.prompt - 1  # the token at `at` + 1 is known
            while at + 1 < last:
                gain = min(lengths[at] + 1, last - at - 1)
                tokens, rounds, at = tokens + gain, rounds + 1, at + gain
    depths = tuple((right / max(1, positions)).tolist())
    return Acceptance(tokens / max(1, rounds), depths, rounds)
