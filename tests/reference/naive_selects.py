"""Adaptive rules written from their papers: one row, one position at a time, plain Python, float64.

CreditDecoding https://arxiv.org/abs/2510.06133, LocalLeap https://arxiv.org/abs/2510.07081, entropy bound
https://arxiv.org/abs/2505.24857, KLASS https://arxiv.org/abs/2511.05664, hierarchical decoding
https://arxiv.org/abs/2510.08666, PC-Sampler https://arxiv.org/abs/2508.13021, DUS https://arxiv.org/abs/2506.19037.
Every rule answers which of the open positions of a block are committed, from the block's probabilities; a decoder
around them keeps blocks and calls `new_block`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.reference.naive_masked import entropy_of, filtered, logits_of, softmax

Distributions = dict[int, np.ndarray]  # open position of the block -> probabilities


def surest(distributions: Distributions) -> list[int]:
    """Open positions, highest probability first; ties go to the lowest position."""
    return sorted(distributions, key=lambda p: (-distributions[p].max(), p))


def sequential(distributions: Distributions) -> list[int]:
    return surest(distributions)[:1]


def threshold(tau: float) -> Callable[[Distributions], list[int]]:
    return lambda distributions: (
        [p for p in distributions if distributions[p].max() >= tau] or surest(distributions)[:1]
    )


class Relaxing:
    """A threshold that falls with the share of the block that is committed."""

    begin, end = 0, 0  # the block, set by the decoder

    def __init__(self, tau: float, relax: float) -> None:
        self.tau, self.relax = tau, relax

    def __call__(self, distributions: Distributions) -> list[int]:
        full = 1 - len(distributions) / (self.end - self.begin)
        return threshold(self.tau * (1 - self.relax * full))(distributions)


def bound(tau: float, least: float, f: float) -> Callable[[Distributions], list[int]]:
    def rule(distributions: Distributions) -> list[int]:
        ranked = surest(distributions)
        chosen = []
        for rank, p in enumerate(ranked):
            sure = distributions[p].max()
            if sure >= tau or (sure >= least and sure >= 1 - f / (rank + 2)):
                chosen.append(p)
        return chosen or ranked[:1]

    return rule


def cumulative(tau: float) -> Callable[[Distributions], list[int]]:
    def rule(distributions: Distributions) -> list[int]:
        chosen: list[int] = []
        product = 1.0
        for p in surest(distributions):
            product *= distributions[p].max()
            if product < tau and chosen:
                break
            chosen.append(p)
        return chosen

    return rule


class EntropyFloor:
    """Low entropies, or as many of the lowest as a schedule requires; `steps` are the block's."""

    def __init__(self, tau: float, steps: int, *, cosine: bool) -> None:
        self.tau, self.steps, self.cosine = tau, steps, cosine

    def new_block(self, count: int) -> None:
        self.at = -1

    def __call__(self, distributions: Distributions) -> list[int]:
        self.at = min(self.at + 1, self.steps - 1)
        share = 1 / (self.steps - self.at)
        if self.cosine:
            before, after = (math.cos(math.pi / 2 * at / self.steps) for at in (self.at, self.at + 1))
            share = (before - after) / before
        entropy = {p: entropy_of(distribution) for p, distribution in distributions.items()}
        low = [p for p in distributions if entropy[p] <= self.tau]
        count = max(1, int(share * len(distributions) + 0.5))
        return low if len(low) >= count else sorted(distributions, key=lambda p: (entropy[p], p))[:count]


def localleap(
    base: Callable[[Distributions], list[int]], tau: float, relaxed: float, radius: int
) -> Callable[[Distributions], Any]:
    """The published rule, anchors by threshold."""

    def rule(distributions: Distributions) -> list[int]:
        anchors = [p for p in distributions if distributions[p].max() >= tau]
        near = {p for p in distributions for a in anchors if abs(p - a) <= radius}
        return [p for p in distributions if distributions[p].max() >= (relaxed if p in near else tau)] or base(
            distributions
        )

    return rule


def entropy_bound(gamma: float) -> Callable[[Distributions], list[int]]:
    def rule(distributions: Distributions) -> list[int]:
        entropy = {p: entropy_of(distribution) for p, distribution in distributions.items()}
        chosen: list[int] = []
        for p in sorted(distributions, key=lambda p: (entropy[p], p)):
            run = [entropy[q] for q in [*chosen, p]]
            if sum(run) - max(run) > gamma:
                break
            chosen.append(p)
        return chosen

    return rule


def hierarchy(high: float | None, low: float) -> Callable[[Distributions], list[int]]:
    def rule(distributions: Distributions) -> list[int]:
        runs: list[list[int]] = []
        for p in sorted(distributions):
            if runs and runs[-1][-1] == p - 1:
                runs[-1].append(p)
            else:
                runs.append([p])
        leads = [surest({p: distributions[p] for p in run})[0] for run in runs]
        chosen = {p for p in leads if distributions[p].max() > low}
        chosen |= {p for p in distributions if high is not None and distributions[p].max() > high}
        return sorted(chosen | set(surest(distributions)[:1]))

    return rule


class Klass:
    """Keeps each position's last distribution and its divergences; `quotas`: tokens that each step must commit."""

    def __init__(self, tau: float, kl: float, history: int, quotas: Callable[[int], list[int]] | None = None) -> None:
        self.tau, self.kl, self.history, self.quotas = tau, kl, history, quotas

    def new_block(self, count: int) -> None:
        self.distributions: Distributions = {}
        self.moved: dict[int, list[float]] = {}
        self.step, self.owed = -1, [] if self.quotas is None else self.quotas(count)

    def __call__(self, distributions: Distributions) -> list[int]:
        self.step += 1
        for p, distribution in distributions.items():
            if p in self.distributions:
                pairs = zip(distribution, self.distributions[p], strict=True)
                kl = sum(x * math.log((x + 1e-12) / (y + 1e-12)) for x, y in pairs)
                self.moved.setdefault(p, []).append(kl)
        self.distributions = dict(distributions)
        still = [
            p
            for p, distribution in distributions.items()
            if len(self.moved.get(p, [])) >= self.history
            and max(self.moved[p][-self.history :]) < self.kl
            and distribution.max() > self.tau
        ]
        count = self.owed[self.step] if self.step < len(self.owed) else 1
        return still or surest(distributions)[: max(count, 1)]


def dilated(width: int, base: int) -> list[set[int]]:
    """Offsets in a block, round by round; a small last round is merged with the round before."""
    levels: list[set[int]] = []
    stride = width // base
    while stride >= 1:
        new = {at for at in range(width) if at % stride == 0}.difference(*levels)
        levels += [new] if new else []
        stride //= base
    rest = set(range(width)).difference(*levels)
    levels += [rest] if rest else []
    if len(levels) > 1 and len(levels[-1]) < len(levels[-2]):
        last = levels.pop()
        levels[-1] |= last
    return levels


class DUS:
    """DUS: the rounds of a block; unconfident positions wait, at most until the last round."""

    begin = 0  # the first position of the block, set by the decoder

    def __init__(self, width: int, base: int, skip: float) -> None:
        self.levels, self.skip = dilated(width, base), skip

    def new_block(self, count: int) -> None:
        self.at = -1

    def __call__(self, distributions: Distributions) -> list[int]:
        self.at = min(self.at + 1, len(self.levels) - 1)
        due: list[int] = []
        while not due:
            reached = set[int]().union(*self.levels[: self.at + 1])
            due = [p for p in distributions if p - self.begin in reached]
            self.at += not due
        last = self.at == len(self.levels) - 1
        return [p for p in due if last or distributions[p].max() >= self.skip] or surest(distributions)[:1]


def spacing(
    base: Callable[[Distributions], list[int]], width: int, gap: int | None, by: int = 2
) -> Callable[[Distributions], list[int]]:
    def rule(distributions: Distributions) -> list[int]:
        least = max(2, len(distributions) * (width // by) // width) if gap is None else gap
        chosen: list[int] = []
        wanted = base(distributions)
        for p in surest(distributions):
            if p in wanted and all(abs(p - q) >= least for q in chosen):
                chosen.append(p)
        return chosen

    return rule


class PC:
    """The published score of PC; commits as many tokens as the block's schedule, `quotas(count)`, has for this step."""

    begin = 0  # the first position of the block, set by the decoder

    def __init__(
        self, frequencies: np.ndarray, decay: float, cap: float, quotas: Callable[[int], list[int]] | None = None
    ) -> None:
        self.frequencies, self.decay, self.cap = frequencies, decay, cap
        self.quotas = quotas or (lambda count: [1] * count)

    def new_block(self, count: int) -> None:
        self.owed = self.quotas(count)

    def __call__(self, distributions: Distributions) -> list[int]:
        def score(p: int) -> float:
            token, probability = int(distributions[p].argmax()), float(distributions[p].max())
            return math.exp(-self.decay * (p - self.begin)) * min(
                self.cap, -probability * math.log(self.frequencies[token])
            )

        return sorted(distributions, key=lambda p: (-score(p), p))[: self.owed.pop(0)]


class Credit:
    """The published order of operations of credit decoding, with the full matrix, followed by another rule."""

    def __init__(
        self,
        rule: Callable[[Distributions], list[int]],
        alpha: float,
        beta: float,
        gamma: float,
        *,
        free: bool = False,
    ) -> None:
        self.rule, self.alpha, self.beta, self.gamma, self.free = rule, alpha, beta, gamma, free

    def new_block(self, count: int) -> None:
        self.matrix: dict[int, np.ndarray] = {}
        self.count = count

    def fuse(self, distributions: Distributions) -> Distributions:
        alpha, beta, gamma = self.alpha, self.beta, self.gamma
        if self.free:
            alpha = beta = 1 - len(distributions) / self.count
            gamma = 1.0
        fused = {}
        for p, distribution in distributions.items():
            credit = self.matrix.setdefault(p, np.zeros(len(distribution)))
            credit *= beta
            credit[int(distribution.argmax())] += distribution.max() ** gamma
            boosted = distribution * (1 + credit) ** alpha
            fused[p] = boosted / boosted.sum()
        return fused


def decode(
    model: Any,
    canvas: list[int],
    start: int,
    rule: Any,
    *,
    block_length: int,
    absolute: bool = False,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    cfg: float | None = None,
) -> tuple[list[int], list[int], int]:
    """Tokens, the forward that committed each position (-1 given) and the number of forwards.

    Candidates are argmaxes: a temperature or a filter only changes the distribution that the rule sees.
    """
    tokens, mask = list(canvas), model.decoding_config.mask_id
    open_ = {p for p in range(start, len(tokens)) if tokens[p] == mask}
    given = [p not in open_ for p in range(len(tokens))]
    when = [-1 if known else -2 for known in given]
    origin, number, nfe = (0 if absolute else start), None, 0
    while open_:
        block = (min(open_) - origin) // block_length
        inside = sorted(p for p in open_ if (p - origin) // block_length == block)
        if block != number:
            number = block
            if hasattr(rule, "begin"):
                rule.begin = origin + block * block_length
                rule.end = min(rule.begin + block_length, len(tokens))
            if hasattr(rule, "new_block"):
                rule.new_block(len(inside))
        logits = logits_of(model, tokens, given, cfg)
        shaped = temperature or top_k is not None or top_p is not None
        distributions = {
            p: filtered(logits[p], temperature, top_k, top_p) if shaped else softmax(logits[p]) for p in inside
        }
        if isinstance(rule, Credit):
            distributions = rule.fuse(distributions)
            chosen = rule.rule(distributions)
        else:
            chosen = rule(distributions)
        for p in chosen:
            tokens[p], when[p] = int(distributions[p].argmax()), nfe
            open_.remove(p)
        nfe += 1
    return tokens, when, nfe
