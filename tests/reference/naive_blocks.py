"""Rules for the active block, written from the papers: one row, one forward at a time, no cache, plain Python.

A rule is made with the prompt's length, the row's length and W, the block length. Before each forward `compete` names
the open positions that may be committed; `seen`, after it, may leave fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import mean, pstdev

Surest = dict[int, tuple[int, float]]  # of each open position: the likeliest token and its probability


@dataclass
class Rule:
    """The base rule: all open positions compete."""

    prompt: int
    total: int
    size: int

    def compete(self, masks: list[int]) -> list[int]:
        return masks

    def seen(self, surest: Surest, competing: list[int]) -> list[int]:
        return competing

    def forced(self, competing: list[int]) -> list[int]:
        """The candidates for a forward that has to commit a position."""
        return competing


class Dsb(Rule):
    """https://arxiv.org/abs/2602.05992"""

    most: int | None = None

    def compete(self, masks: list[int]) -> list[int]:
        begin = masks[0]
        end = self.prompt + self.size + (self.total - self.prompt - len(masks))
        if self.most is not None:
            end = min(end, begin + self.most)
        return [p for p in masks if p < max(end, begin + 1)]


class Dcd(Rule):
    """https://arxiv.org/abs/2601.02076"""

    masks: int | None = None
    most: int | None = None

    def compete(self, masks: list[int]) -> list[int]:
        begin = masks[0]
        return [p for p in masks[: self.masks or self.size] if p < begin + (self.most or 2 * self.size)]


@dataclass
class AdaBlock(Rule):
    """https://arxiv.org/abs/2509.26432"""

    tau: float = 0.3
    delimiters: frozenset[int] = frozenset()
    scope: float = 0.25
    end: int = -1
    begin: int = -1
    new: bool = False

    def compete(self, masks: list[int]) -> list[int]:
        self.new = masks[0] >= self.end
        if self.new:
            self.begin = masks[0]
            return masks
        return [p for p in masks if p < self.end]

    def seen(self, surest: Surest, competing: list[int]) -> list[int]:
        if self.new:
            near = range(self.begin, self.begin + int(self.scope * (self.total - self.prompt) + 1e-9))
            ends = [p for p in competing if p in near and surest[p][0] in self.delimiters]
            best = max(ends, key=lambda p: (surest[p][1], -p), default=None)
            sure = best is not None and surest[best][1] >= self.tau
            self.end = best + 1 if sure and best is not None else min(self.begin + self.size, self.total)
        return [p for p in competing if p < self.end]


@dataclass
class MultiBlock(Rule):
    """https://arxiv.org/abs/2601.07568"""

    add: float = 0.1
    blocks: int = 4
    active: list[int] = field(default_factory=list)

    def _of(self, number: int) -> range:
        begin = self.prompt + number * self.size
        return range(begin, min(begin + self.size, self.total))

    def compete(self, masks: list[int]) -> list[int]:
        count = -(-(self.total - self.prompt) // self.size)
        left = {number: sum(p in self._of(number) for p in masks) for number in range(count)}
        first = min(number for number in left if left[number])
        self.active = [number for number in self.active if number >= first] or [first]
        while len(self.active) < self.blocks and self.active[-1] + 1 < count:
            last = self.active[-1]
            if 1 - left[last] / len(self._of(last)) < self.add - 1e-9:
                break
            self.active.append(last + 1)
        return [p for p in masks if any(p in self._of(number) for number in self.active)]

    def forced(self, competing: list[int]) -> list[int]:
        return [p for p in competing if p in self._of(self.active[0])]


@dataclass
class SlowFast(Rule):
    """https://arxiv.org/abs/2506.10848"""

    tau: float = 0.3
    steps: int = 6
    whole: bool = False  # all forwards of a slow phase
    begin: int = -1
    end: int | None = None  # of the stretch, in the fast phase
    estimates: list[int] = field(default_factory=list)

    def _border(self) -> int:
        return min(self.prompt + ((self.begin - self.prompt) // self.size + 1) * self.size, self.total)

    def compete(self, masks: list[int]) -> list[int]:
        limit = self._border() if self.end is None else self.end
        if self.begin < 0 or masks[0] >= limit:
            self.begin, self.end, self.estimates = masks[0], None, []
        return [p for p in masks if self.begin <= p < (self._border() if self.end is None else self.end)]

    def seen(self, surest: Surest, competing: list[int]) -> list[int]:
        if self.end is None:
            far = [p for p in competing if surest[p][1] >= self.tau]
            self.estimates.append(min(max([*far, self.begin]) + 1, self._border()))
            last = self.estimates[-2:]
            agree = len(last) == 2 and pstdev(last) < 1
            if (agree and not self.whole) or len(self.estimates) == self.steps:
                self.end = last[-1] if agree else int(mean(last))
        return competing


def decode(
    predict: Callable[[list[int]], list[tuple[int, float]]],
    canvas: Iterable[int],
    mask: int,
    rule: Rule,
    tau: float,
) -> tuple[list[int], list[int]]:
    """Tokens, and the forward that committed each (-1: given). `predict` names each position's likeliest token."""
    tokens = list(canvas)
    when = [-1] * len(tokens)
    step = 0
    while masks := [p for p, token in enumerate(tokens) if token == mask and p >= rule.prompt]:
        competing = rule.compete(masks)
        likeliest = predict(tokens)
        surest = {p: likeliest[p] for p in masks}
        competing = rule.seen(surest, competing)
        chosen = [p for p in competing if surest[p][1] >= tau]
        must = rule.forced(competing)
        if not set(chosen) & set(must):
            chosen.append(max(must, key=lambda p: (surest[p][1], -p)))
        for p in chosen:
            tokens[p], when[p] = surest[p][0], step
        step += 1
    return tokens, when
