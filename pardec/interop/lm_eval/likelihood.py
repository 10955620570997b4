"""Log-likelihoods of answers: exact for AR models, by masks (Monte Carlo or a chain rule) for masked ones.

Large Language Diffusion Models, https://arxiv.org/abs/2502.09992, scores an answer of L tokens by the expectation of

    L / l * sum of log p(token | what is not masked) over the masked,   l uniform in 1..L, any l tokens masked alike

which bounds its log-likelihood from below. Here an answer with no more than `mc_num` possible masks gets this
expectation exactly; for a longer one, l is drawn by systematic sampling and masks drawn twice are run once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, pairwise
from math import comb
from typing import Literal, get_args

import numpy as np
import torch

from pardec.models.errors import SpecError, did_you_mean
from pardec.samplers.rng import Keyed

from .token_probabilities import Answer, Query, TokenProbabilities

Kind = Literal["mc", "chain", "confident"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Unit:
    """An answer, or one block of it, after what is given."""

    prefix: list[int]
    target: list[int]
    context: int  # leading tokens of the prefix that guidance hides
    key: int  # seed of its masks

    @property
    def positions(self) -> range:
        return range(len(self.prefix), len(self.prefix) + len(self.target))


@dataclass(slots=True)
class _Progress:
    """A unit that is being filled, the surest position first."""

    unit: Unit
    open: list[int] = field(default_factory=list)  # indices into the target, ascending
    log_prob: float = 0.0
    greedy: bool = True

    def query(self, mask: int) -> Query:
        unit = self.unit
        filled = [mask if i in set(self.open) else token for i, token in enumerate(unit.target)]
        at = [unit.positions[i] for i in self.open]
        return Query(unit.prefix + filled, at, [unit.target[i] for i in self.open], unit.context)

    def take(self, answer: Answer) -> None:
        """Commits the right token at the surest position; the first of equally sure ones."""
        at = int(answer.score.argmax())
        index = self.open.pop(at)
        self.log_prob += float(answer.log_prob[at])
        self.greedy &= int(answer.best[at]) == self.unit.target[index]


class Likelihood:
    """Scores answers by one rule.

    Args:
        laws: the model to ask.
        kind: "mc" (the expectation above), "chain" (the chain rule from left to right), "confident" (the chain rule in
            the order of `sequential`: the surest position first); an AR model has its one exact chain whatever is said.
        mc_num: most masks that an answer is scored with.
        check_greedy: find out whether greedy decoding makes the answer, which costs forwards unless `kind` is
            "confident" or the model AR; otherwise that is always said to be False.

    Raises:
        SpecError: an unknown kind, an mc_num below 1, guidance of an AR model.
    """

    def __init__(
        self, distributions: TokenProbabilities, *, kind: str = "mc", mc_num: int = 128, check_greedy: bool = True
    ) -> None:
        if kind not in KINDS:
            raise SpecError(f"unknown likelihood {kind!r}{did_you_mean(str(kind), KINDS)}", hint=f"one of {KINDS}")
        if not isinstance(mc_num, int) or isinstance(mc_num, bool) or mc_num < 1:
            raise SpecError(f"mc_num is a whole number of at least 1, got {mc_num!r}", hint="mc_num=128")
        self.distributions, self.kind, self.mc_num, self.check_greedy = distributions, kind, mc_num, check_greedy
        self.decoding_config = distributions.model.decoding_config
        if distributions.cfg is not None and not self.decoding_config.masked:
            raise SpecError(
                f"cfg guides masked models and {distributions.model.name} is an AR model", hint="leave cfg out"
            )

    def score(self, pairs: Sequence[tuple[list[int], list[int]]], *, seed: int = 0) -> list[tuple[float, bool]]:
        """Log-likelihood, in nats, of each answer after its context, and whether greedy decoding makes it.

        Args:
            pairs: (context ids, answer ids); the context has at least one token.
            seed: of the masks. Answers to one context share their random numbers, which keeps comparisons quiet.
        """
        units = [self._units(context, answer, seed) for context, answer in pairs]
        flat = [unit for several in units for unit in several]
        found = iter(self._score(flat) if flat else [])
        made = [[next(found) for _ in several] for several in units]
        return [(sum(value for value, _ in several), all(greedy for _, greedy in several)) for several in made]

    def _units(self, context: list[int], answer: list[int], seed: int) -> list[Unit]:
        """The answer as one unit, or block by block where later blocks see only finished ones."""
        ids, start, key = context + answer, len(context), key_of(seed, context)
        block = self.decoding_config.block if self.decoding_config.attention == "block-causal" else None
        inner = [] if block is None else range(start - start % block + block, len(ids), block)
        edges = [start, *inner, len(ids)] if answer else []
        return [Unit(ids[:a], ids[a:b], start, key) for a, b in pairwise(edges)]

    def _score(self, units: Sequence[Unit]) -> list[tuple[float, bool]]:
        if not self.decoding_config.masked:
            return self._exact(units)
        if self.kind == "confident":
            return [(done.log_prob, done.greedy) for done in self._filled(units)]
        patterns = leftmost if self.kind == "chain" else partial(masks, limit=self.mc_num)
        values = self._weighted(units, [patterns(len(unit.target), key=unit.key) for unit in units])
        greedy = [done.greedy for done in self._filled(units, while_greedy=True)] if self.check_greedy else []
        return list(zip(values, greedy or [False] * len(units), strict=True))

    def _exact(self, units: Sequence[Unit]) -> list[tuple[float, bool]]:
        answers = self.distributions.ask([Query((u.prefix + u.target)[:-1], u.positions, u.target) for u in units])
        return [
            (float(answer.log_prob.sum()), answer.best.tolist() == unit.target)
            for unit, answer in zip(units, answers, strict=True)
        ]

    def _weighted(self, units: Sequence[Unit], patterns: Sequence[list[Pattern]]) -> list[float]:
        """The weighted sum over each unit's patterns of the log-probabilities they ask for."""
        mask = self.decoding_config.mask_id
        assert mask is not None
        queries = []
        for unit, several in zip(units, patterns, strict=True):
            for pattern in several:
                hidden = set(pattern.masked)
                filled = [mask if i in hidden else token for i, token in enumerate(unit.target)]
                at = [unit.positions[i] for i in pattern.asked]
                queries.append(Query(unit.prefix + filled, at, [unit.target[i] for i in pattern.asked], unit.context))
        answers = iter(self.distributions.ask(queries))
        return [sum(p.weight * float(next(answers).log_prob.sum()) for p in several) for several in patterns]

    def _filled(self, units: Sequence[Unit], *, while_greedy: bool = False) -> list[_Progress]:
        """Each unit filled the surest position first, or only until greedy decoding would have left it."""
        mask = self.decoding_config.mask_id
        assert mask is not None
        made = [_Progress(unit, list(range(len(unit.target)))) for unit in units]
        live = made
        while live:
            for progress, answer in zip(live, self.distributions.ask([p.query(mask) for p in live]), strict=True):
                progress.take(answer)
            live = [p for p in live if p.open and (p.greedy or not while_greedy)]
        return made


@dataclass(frozen=True, slots=True)
class Pattern:
    """One mask over an answer: which of its tokens are hidden, which of those are asked, and what they weigh."""

    masked: tuple[int, ...]
    asked: tuple[int, ...]
    weight: float


def leftmost(length: int, *, key: int) -> list[Pattern]:
    """The chain rule from left to right: each token after those before it, all later ones masked."""
    return [Pattern(tuple(range(i, length)), (i,), 1.0) for i in range(length)]


def masks(length: int, *, key: int, limit: int) -> list[Pattern]:
    """The masks of the expectation: all of them where there are at most `limit`, otherwise `limit` draws.

    >>> [(p.masked, p.weight) for p in masks(2, key=0, limit=3)]
    [((0,), 0.5), ((1,), 0.5), ((0, 1), 0.5)]
    """
    if 2**length - 1 <= limit:
        return [
            Pattern(chosen, chosen, 1 / (count * comb(length, count)))
            for count in range(1, length + 1)
            for chosen in combinations(range(length), count)
        ]
    source, rows = Keyed((key,)), np.zeros(limit, dtype=np.int64)
    offset = source.uniform(rows[:1], rows[:1], torch.zeros(1, 1, dtype=torch.int64), "mask-count")
    counts = ((torch.arange(limit) + offset[0]) / limit * length).floor().long().clamp_(max=length - 1) + 1
    order = source.uniform(rows, np.arange(limit), torch.arange(length).expand(limit, length), "mask-order").argsort(-1)
    samples = [tuple(sorted(row[:count])) for row, count in zip(order.tolist(), counts.tolist(), strict=True)]
    return [Pattern(m, m, times / limit * length / len(m)) for m, times in Counter(samples).items()]


def key_of(seed: int, ids: Sequence[int], repeat: int = 0) -> int:
    """A seed for the `repeat`-th request with these ids, whatever it is batched with or comes after."""
    text = f"{seed}/{repeat}/{','.join(map(str, ids))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
