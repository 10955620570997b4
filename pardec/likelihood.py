"""Log-likelihoods of answers: exact for AR models, by Monte Carlo over masks or a chain rule for masked models.

Large Language Diffusion Models, https://arxiv.org/abs/2502.09992, scores an answer of L tokens by the expectation of

    L / l * sum over masked tokens of log p(token | unmasked tokens),   l uniform in 1..L, a uniform choice of l tokens

which is a lower bound of its log-likelihood. For an answer with at most `mc_num` possible masks the expectation is
computed exactly; for a longer one, l is drawn by systematic sampling and masks drawn twice are run once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, pairwise
from math import comb
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch

from pardec.models.errors import SpecError, did_you_mean
from pardec.models.plan import Plan
from pardec.samplers.rng import Keyed

from .token_probabilities import Answer, Query, TokenProbabilities

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel

    from .result import Result


Kind = Literal["mc", "chain", "confident"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Unit:
    """An answer, or one block of it, with the tokens before it."""

    prefix: list[int]
    target: list[int]
    context: int  # leading tokens of the prefix that guidance masks
    key: int  # seed of its masks

    @property
    def positions(self) -> range:
        return range(len(self.prefix), len(self.prefix) + len(self.target))


@dataclass(slots=True)
class _Progress:
    """A unit that is filled in order of confidence."""

    unit: Unit
    open: list[int] = field(default_factory=list)  # indices into the target, ascending
    log_prob: float = 0.0
    greedy: bool = True

    def query(self, mask: int) -> Query:
        unit = self.unit
        filled = [mask if i in set(self.open) else token for i, token in enumerate(unit.target)]
        at = [unit.positions[i] for i in self.open]
        return Query(unit.prefix + filled, at, [unit.target[i] for i in self.open], unit.context)

    def commit(self, answer: Answer) -> None:
        """Commits the answer's token at the most confident position; the first of equal ones."""
        at = int(answer.score.argmax())
        index = self.open.pop(at)
        self.log_prob += float(answer.log_prob[at])
        self.greedy &= int(answer.best[at]) == self.unit.target[index]


class Likelihood:
    """Scores answers.

    Args:
        distributions: token probabilities of the model.
        kind: "mc" (the expectation above), "chain" (the chain rule from left to right), "confident" (the chain rule in
            the order of `sequential`: the most confident position first); AR models always use their exact chain.
        mc_num: most masks per answer.
        check_greedy: determine whether greedy decoding gives the answer, which costs forwards unless `kind` is
            "confident" or the model is AR; if off, the result is False for the other kinds.

    Raises:
        SpecError: an unknown kind, an mc_num below 1, guidance of an AR model.
    """

    def __init__(
        self, distributions: TokenProbabilities, *, kind: str = "mc", mc_num: int = 128, check_greedy: bool = True
    ) -> None:
        if kind not in KINDS:
            raise SpecError(f"unknown likelihood {kind!r}{did_you_mean(str(kind), KINDS)}", hint=f"one of {KINDS}")
        if not isinstance(mc_num, int) or isinstance(mc_num, bool) or mc_num < 1:
            raise SpecError(f"mc_num must be a whole number of at least 1, got {mc_num!r}", hint="mc_num=128")
        self.distributions, self.kind, self.mc_num, self.check_greedy = distributions, kind, mc_num, check_greedy
        self.decoding_config = distributions.model.decoding_config
        if distributions.cfg is not None and not self.decoding_config.masked:
            raise SpecError(
                f"cfg guides masked models and {distributions.model.name} is an AR model", hint="leave cfg out"
            )

    def score(self, pairs: Sequence[tuple[list[int], list[int]]], *, seed: int = 0) -> list[tuple[float, bool]]:
        """Log-likelihood, in nats, of each answer after its context, and whether greedy decoding gives it.

        Args:
            pairs: (context ids, answer ids); the context has at least one token.
            seed: of the masks. Answers to the same context share random numbers, which reduces the variance of
                comparisons.

        Raises:
            SpecError: a model that starts from random tokens, without a mask token that could hide an answer.
        """
        if self.decoding_config.uniform:
            raise SpecError(
                f"{self.distributions.model.name} has no mask token, so likelihoods are not defined here",
                hint="choose tasks that generate their answers",
            )
        units = [self._units(context, answer, seed) for context, answer in pairs]
        flat = [unit for unit_list in units for unit in unit_list]
        results = iter(self._score(flat) if flat else [])
        grouped = [[next(results) for _ in unit_list] for unit_list in units]
        return [(sum(value for value, _ in unit_list), all(greedy for _, greedy in unit_list)) for unit_list in grouped]

    def _units(self, context: list[int], answer: list[int], seed: int) -> list[Unit]:
        """The answer as one unit, or one unit per block for block-causal models."""
        ids, start, key = context + answer, len(context), key_of(seed, context)
        block = self.decoding_config.block if self.decoding_config.attention == "block-causal" else None
        inner = [] if block is None else range(start - start % block + block, len(ids), block)
        edges = [start, *inner, len(ids)] if answer else []
        return [Unit(ids[:a], ids[a:b], start, key) for a, b in pairwise(edges)]

    def _score(self, units: Sequence[Unit]) -> list[tuple[float, bool]]:
        if not self.decoding_config.masked:
            return self._exact(units)
        if self.kind == "confident":
            return [(progress.log_prob, progress.greedy) for progress in self._fill(units)]
        patterns = leftmost if self.kind == "chain" else partial(masks, limit=self.mc_num)
        values = self._weighted(units, [patterns(len(unit.target), key=unit.key) for unit in units])
        greedy = [progress.greedy for progress in self._fill(units, while_greedy=True)] if self.check_greedy else []
        return list(zip(values, greedy or [False] * len(units), strict=True))

    def _exact(self, units: Sequence[Unit]) -> list[tuple[float, bool]]:
        answers = self.distributions.query([Query((u.prefix + u.target)[:-1], u.positions, u.target) for u in units])
        return [
            (float(answer.log_prob.sum()), answer.best.tolist() == unit.target)
            for unit, answer in zip(units, answers, strict=True)
        ]

    def _weighted(self, units: Sequence[Unit], patterns: Sequence[list[Pattern]]) -> list[float]:
        """The weighted sum over each unit's patterns of the log-probabilities that they query."""
        mask = self.decoding_config.mask_id
        assert mask is not None
        queries = []
        for unit, several in zip(units, patterns, strict=True):
            for pattern in several:
                hidden = set(pattern.masked)
                filled = [mask if i in hidden else token for i, token in enumerate(unit.target)]
                at = [unit.positions[i] for i in pattern.queried]
                queries.append(Query(unit.prefix + filled, at, [unit.target[i] for i in pattern.queried], unit.context))
        answers = iter(self.distributions.query(queries))
        return [
            sum(pattern.weight * float(next(answers).log_prob.sum()) for pattern in several) for several in patterns
        ]

    def _fill(self, units: Sequence[Unit], *, while_greedy: bool = False) -> list[_Progress]:
        """Fills each unit in order of confidence, or only until greedy decoding would have committed another token."""
        mask = self.decoding_config.mask_id
        assert mask is not None
        progresses = [_Progress(unit, list(range(len(unit.target)))) for unit in units]
        active = progresses
        while active:
            for progress, answer in zip(active, self.distributions.query([p.query(mask) for p in active]), strict=True):
                progress.commit(answer)
            active = [p for p in active if p.open and (p.greedy or not while_greedy)]
        return progresses


@dataclass(frozen=True, slots=True)
class Pattern:
    """One mask over an answer: the masked tokens, the queried ones among them, and their weight."""

    masked: tuple[int, ...]
    queried: tuple[int, ...]
    weight: float


def leftmost(length: int, *, key: int) -> list[Pattern]:
    """The chain rule from left to right: each token given those before it, with all later ones masked."""
    return [Pattern(tuple(range(i, length)), (i,), 1.0) for i in range(length)]


def masks(length: int, *, key: int, limit: int) -> list[Pattern]:
    """The masks of the expectation: all of them if there are at most `limit`, otherwise `limit` draws.

    >>> [(p.masked, p.weight) for p in masks(2, key=0, limit=3)]
    [((0,), 0.5), ((1,), 0.5), ((0, 1), 0.5)]
    """
    if 2**length - 1 <= limit:
        return [
            Pattern(masked, masked, 1 / (count * comb(length, count)))
            for count in range(1, length + 1)
            for masked in combinations(range(length), count)
        ]
    draws, rows = Keyed((key,)), np.zeros(limit, dtype=np.int64)
    offset = draws.uniform(rows[:1], rows[:1], torch.zeros(1, 1, dtype=torch.int64), "mask-count")
    counts = ((torch.arange(limit) + offset[0]) / limit * length).floor().long().clamp_(max=length - 1) + 1
    order = draws.uniform(rows, np.arange(limit), torch.arange(length).expand(limit, length), "mask-order").argsort(-1)
    samples = [tuple(sorted(row[:count])) for row, count in zip(order.tolist(), counts.tolist(), strict=True)]
    return [Pattern(m, m, times / limit * length / len(m)) for m, times in Counter(samples).items()]


def key_of(seed: int, ids: Sequence[int], repeat: int = 0) -> int:
    """A seed for the `repeat`-th request with these ids, independent of batch and order."""
    text = f"{seed}/{repeat}/{','.join(map(str, ids))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


@dataclass(frozen=True)
class Deviation:
    """The difference between an answer and the model's own predictions; one number per row.

    Attributes:
        agreement: the share of the generated tokens that are the model's likeliest after the text before them.
        nats: the mean absolute difference of log-probability between the decoding, with its cache, and the model.
    """

    agreement: list[float]
    nats: list[float]


def deviation(model: LanguageModel, result: Result) -> Deviation:
    """Reads each row of `result` in one forward of `model`, with a plain cache, and compares.

    It measures what lossy caches and relaxed acceptances cost: of an exact answer at temperature 0 the agreement is 1.
    The distributions are the model's own, before processors, temperature and filters.

    Raises SpecError for results that do not come from an autoregressive model's text.
    """
    if not result.trace.accepted or result.latents is not None or result.grid:
        raise SpecError(
            "only the result of an autoregressive model of text can be compared with its predictions after each prefix",
            hint="pass a result of such a model; other models do not predict the next token",
        )
    agreement, nats = list[float](), list[float]()
    for row, start in enumerate(result.prompts):
        stop = start + len(result.tokens[row])
        ids = result.sequences[row, :stop]
        outputs = torch.arange(start - 1, stop - 1, device=model.device)
        with torch.inference_mode():
            hidden = model.forward(Plan.full(ids[None].to(model.device), model.visible()), None)
            logprobs = hidden.logits(outputs[None])[0].log_softmax(-1).cpu()
        own = logprobs.gather(1, ids[start:, None])[:, 0]
        decoded = torch.from_numpy(result.trace.commit_score[row, start:stop]).log()
        agreement.append(float((logprobs.argmax(-1) == ids[start:]).float().mean()))
        nats.append(float((own - decoded).abs().mean()))
    return Deviation(agreement, nats)
