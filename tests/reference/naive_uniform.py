"""Decoding with uniform noise written from its papers: one row, plain loops, every step from scratch.

Sumi (https://arxiv.org/abs/2606.19005), with the noise of GIDD (https://arxiv.org/abs/2503.04482) and the confidence of
https://arxiv.org/abs/2512.10858, appendix A.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from pardec.samplers.rng import Keyed, gumbel
from tests.reference.naive_masked import softmax

Predict = Callable[[list[int]], np.ndarray]  # the tokens of a row -> logits [L, V] of each position


@dataclass(frozen=True)
class Rule:
    """One of the published samplers, "ancestral" or "adaptive", with its settings."""

    sampler: str
    steps: int
    temperature: float
    schedule: str = "linear"
    low: float = -9.0
    high: float = 9.0
    tokens: int = 1

    def alpha(self, step: int) -> float:
        """The share of clean tokens after `step` of the steps."""
        at = step / self.steps
        if self.schedule == "linear":
            share = 1e-4 + at * (1 - 2e-4)
        else:
            share = 0.5 + 0.5 * math.cos(math.pi * ((1 - 1e-3) + at * (2e-3 - 1)))
        share = min(max(share, 1e-6), 1 - 1e-6)
        odds = min(max(math.log(share / (1 - share)), self.low), self.high)
        return 1 / (1 + math.exp(-odds))

    def clean(self, logits: np.ndarray) -> np.ndarray:
        """x_hat [V]: softmax(logits / temperature); at temperature 0 the likeliest token."""
        if not self.temperature:
            return np.eye(len(logits))[logits.argmax()]
        return softmax(logits / self.temperature)


def posterior(current: int, clean: np.ndarray, before: float, after: float) -> np.ndarray:
    """p(z_s | z_t) [V] by Bayes' rule from the two matrices of the noise."""
    vocab = len(clean)

    def noise(alpha: float) -> np.ndarray:  # [from, to]
        return alpha * np.eye(vocab) + (1 - alpha) / vocab

    marginal = clean @ noise(after)
    joint = marginal * noise(before / after)[:, current]
    chances: np.ndarray = joint / joint.sum()
    return chances


@dataclass
class Run:
    """A decoded row."""

    tokens: list[int]
    forwards: int = 0
    every: list[list[int]] = field(default_factory=list)  # the row after each step


def decode(predict: Predict, row: Sequence[int | None], prompt: int, rule: Rule, seed: int, size: int) -> Run:
    """Decodes the positions of a row that are None, in blocks of `size` from `prompt` on, with pardec's random numbers.

    The posterior is drawn as "stay", with the chance that z_t has beyond the other tokens' rule, or else a token of
    the noisy x_hat: a predicted one, or any.
    """
    source, rows = Keyed((seed,)), np.array([0])
    done = Run([])

    def uniform(step: int, position: int, purpose: str, width: int = 1) -> np.ndarray:
        drawn = source.uniform(rows, np.array([step]), torch.tensor([[position]]), purpose, width if width > 1 else 0)
        values: np.ndarray = drawn.flatten().numpy()
        return values

    tokens: list[int | None] = list(row)
    vocab = predict([0] * len(row)).shape[1]

    def noisy(step: int) -> list[int]:
        return [
            min(int(uniform(step, p, "noise")[0] * vocab), vocab - 1) if token is None else token
            for p, token in enumerate(tokens)
        ]

    for start in range(prompt, len(row), size):
        free = [p for p in range(start, min(start + size, len(row))) if row[p] is None]
        for step in range(rule.steps if free else 0):
            current = noisy(done.forwards)
            logits = predict(current)
            drawn = {}
            for p in free:
                noise = gumbel(torch.from_numpy(uniform(done.forwards, p, "token", vocab))).numpy()
                scaled = logits[p] / rule.temperature + noise if rule.temperature else logits[p]
                drawn[p] = int(scaled.argmax())
            if rule.sampler == "ancestral":
                before, after = rule.alpha(step), rule.alpha(step + 1)
                for p in free:
                    clean = rule.clean(logits[p])
                    chances = posterior(current[p], clean, before, after)
                    whole = after * clean + (1 - after) / vocab
                    others = [chances[v] / whole[v] for v in range(vocab) if v != current[p]]
                    stay = chances[current[p]] - others[0] * whole[current[p]]
                    first, second, third = uniform(done.forwards, p, "posterior", 3)
                    other = drawn[p] if second < after else min(int(third * vocab), vocab - 1)
                    tokens[p] = current[p] if first < stay else other
            else:
                gains = {p: softmax(logits[p]).max() - softmax(logits[p])[current[p]] for p in free}
                chosen = sorted(free, key=lambda p: (-gains[p], p))[: rule.tokens]
                for p in free:
                    tokens[p] = drawn[p] if p in chosen else current[p]
            done.forwards += 1
            done.every.append([-1 if token is None else token for token in tokens])
    done.tokens = [-1 if token is None else token for token in tokens]
    return done
