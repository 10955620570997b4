"""Shared by tests of draft models: toys under a name, a fake one with given distributions, a statistical checker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.rng import Keyed as Seeds
from pardec.samplers.spec import parse
from pardec.samplers.speculative.contracts import Draft, DraftModel, Length, RoundResult, RoundUniforms, Verdict
from pardec.samplers.speculative.draft.eagle_state import PairState
from pardec.samplers.speculative.draft_model import DraftModelState
from pardec.samplers.speculative.forward import VerifyForward
from pardec.samplers.speculative.sequences import Sequences
from pardec.samplers.traits import Trait
from tests.samplers.ar_toys import plain_greedy, toy_ar

LENGTHS = ("", "+heuristic", "+unsure:tau=0.6", "+fallback:below=0.5", "+calibrated:h=0.5", "+goodput:c=0.2")
RAGGED = [[3], [1, 0, 4, 2, 2, 1, 3], [0, 4], [2, 1, 1, 0, 3, 4, 4, 2, 0, 1, 2]]
NEW = [14, 17, 9, 20]


@contextmanager
def named(**models: LanguageModel) -> Iterator[None]:
    """Makes `model:name=...` draft with these models."""
    with patch.object(draft_models, "language_model", lambda name, device, dtype: models[name]):
        yield


@cache
def target() -> LanguageModel:
    return toy_ar(0, 5, 3.0, layers=4)


@cache
def near() -> LanguageModel:
    """A drafter that is right about half of the time: the target without the MLP of its last layer."""
    model = toy_ar(0, 5, 3.0, layers=4)
    stack: Any = model.decoder
    stack.layers[3].down_weight.zero_()
    return model


@cache
def greedy(new: tuple[int, ...] = tuple(NEW)) -> list[list[int]]:
    """The rows of `RAGGED` by plain greedy decoding."""
    return [plain_greedy(target(), prompt, count) for prompt, count in zip(RAGGED, new, strict=True)]


# --- distributions compared with whole forwards ---


def path(draft: Draft, row: int, node: int) -> list[int]:
    """The tokens from after node 0 to `node`."""
    found: list[int] = []
    while node > 0:
        found.append(int(draft.tokens[row, node]))
        node = int(draft.parent[row, node])
    return found[::-1]


# Logits after texts and after their beginnings, inside `distribution_errors`.
_known_logits: dict[tuple[Any, ...], Tensor] | None = None


def distribution(model: LanguageModel, text: Sequence[int], **part: Any) -> Tensor:
    """Raw logits [V] after `text`, by a forward without a cache; `part`: fields of its plan.

    Inside `distribution_errors` the logits of a text are computed once.
    """
    known = {} if _known_logits is None else _known_logits
    key = (id(model), repr(part))
    if (*key, *text) not in known:
        plan = Plan.full(torch.tensor([list(text)]), model.visible())
        plan = Plan(**{**{name: getattr(plan, name) for name in Plan.__slots__}, **part})
        for size, logits in enumerate(model.forward(plan).logits()[0], 1):
            known[(*key, *text[:size])] = logits
    return known[(*key, *text)]


def apart(found: Tensor, expected: Tensor) -> float:
    """The largest difference divided by the largest entry, since rounding errors grow with the sums."""
    return float((found - expected).abs().max() / expected.abs().max())


@contextmanager
def distribution_errors(truth: Callable[[list[int]], Tensor] | None = None) -> Iterator[list[float]]:
    """Compares the drafter's logits after every node with `truth` of the text, and the target's with `distribution`.

    Returns the largest difference of each, divided by its largest logit.
    """
    global _known_logits
    errors: list[float] = []
    forward, verify = DraftModelState.forward, VerifyForward.verify

    def compared(self: DraftModelState, draft: Draft, nodes: Tensor) -> Tensor:
        said = forward(self, draft, nodes)
        for row in range(len(nodes)):
            for at, node in enumerate(nodes[row].tolist()):
                if node >= 0 and truth is not None:
                    text = [*self.context.text.row(row).tolist(), *path(draft, row, node)]
                    errors.append(apart(said[row, at], truth(text)))
        return said

    def verified(self: VerifyForward, draft: Draft) -> Any:
        raw, made = verify(self, draft)
        for row, size in enumerate(draft.sizes):
            for node in reversed(range(size)):  # of a chain the first is the beginning of all others
                text = [*self.text.row(row).tolist(), *path(draft, row, node)]
                errors.append(apart(raw[row, node], distribution(self.model, text)))
        return raw, made

    _known_logits = {}
    try:
        with patch.object(DraftModelState, "forward", compared), patch.object(VerifyForward, "verify", verified):
            yield errors
    finally:
        _known_logits = None


# --- shapes without a model ---


class FakeDraftModel(DraftModel):
    """A fake draft model whose logits [V] after a path are drawn once for that path."""

    def __init__(self, text: Sequences, vocab: int = 6, sharp: float = 2.0, least: float = -np.inf) -> None:
        self.text, self.vocab, self.sharp, self.least = text, vocab, sharp, least
        self.calls: list[list[list[int]]] = []
        self.pruned: list[list[int]] | None = None

    def logits(self, row: int, tokens: Sequence[int]) -> np.ndarray:
        seed = [*self.text.row(row).tolist(), 99, *tokens]
        drawn = np.random.default_rng(seed).standard_normal(self.vocab) * self.sharp
        drawn[drawn < self.least] = -np.inf
        return drawn

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        self.calls.append(nodes.tolist())
        said = np.zeros((*nodes.shape, self.vocab))
        for row, col in zip(*np.nonzero(nodes.numpy() >= 0), strict=True):
            said[row, col] = self.logits(row, path(draft, row, int(nodes[row, col])))
        return torch.from_numpy(said).float()

    def prune(self, nodes: Tensor) -> None:
        self.pruned = nodes.tolist()


def context(text: Sequences, *, temperature: float = 0.0, accept: str = "speculative", length: Any = None) -> Any:
    """The parts of a draft context that shapes and controllers read."""
    rule = registry.build_method(parse(accept).parts[0], "ar")
    return SimpleNamespace(
        text=text,
        request=SimpleNamespace(temperature=temperature, draft_model=None),
        sampler=SimpleNamespace(length=length, accept=rule),
        siblings=getattr(rule, "siblings", "without"),
        state=lambda stage: None,
    )


def written(prompts: Sequence[Sequence[int]], new: int = 20) -> Sequences:
    return Sequences([torch.tensor(prompt) for prompt in prompts], [len(p) + new for p in prompts], pad_id=0)


def uniforms(text: Sequences, seed: int = 0) -> RoundUniforms:
    count = len(text)
    return RoundUniforms(
        Seeds(tuple(range(seed, seed + count))), text.rows, np.zeros(count, dtype=np.int64), text.device
    )


def grown(shape: Any, draft_model: FakeDraftModel, budget: Sequence[int], seed: int = 0, **more: Any) -> Draft:
    """A draft that `shape` grows from `draft_model`; checks the invariants of drafts."""
    draft: Draft = shape.grow(
        draft_model, context(draft_model.text, **more), np.array(budget), uniforms(draft_model.text, seed), None
    )
    assert draft.tokens[:, 0].tolist() == draft_model.text.last.tolist()
    assert draft.width <= shape.width(max(budget))
    for row, size in enumerate(draft.sizes):
        assert int(draft.depth[row, :size].max()) <= budget[row]
        for node in range(1, size):
            parent = int(draft.parent[row, node])
            assert 0 <= parent < node
            assert int(draft.depth[row, node]) == int(draft.depth[row, parent]) + 1
    return draft


def nodes(draft: Draft, row: int) -> list[tuple[int, ...]]:
    """The paths of a row's nodes, node 0 left out."""
    return [tuple(path(draft, row, node)) for node in range(1, int(draft.sizes[row]))]


# --- controllers without a model ---


class Pausing(Length):
    """A length controller with which each row drafts in some rounds only, and no row in two of every eight."""

    def __init__(self) -> None:
        self.rounds = 0

    def budget(self, most: int, context: Any, state: None) -> np.ndarray:
        self.rounds += 1
        wanted: np.ndarray = (context.text.rows + self.rounds) % 3 * 2 * (self.rounds % 8 > 1)
        return wanted

    def stop(self, *_: Any) -> None:
        return None

    def observe(self, *_: Any) -> None:
        return


def outcome(drafted: Sequence[int], accepted: Sequence[int], forwards: int = 0) -> RoundResult:
    """The outcome of a round of chains."""
    counts = np.array(drafted)
    tokens = torch.zeros(len(counts), int(counts.max(initial=0)) + 1, dtype=torch.int64)
    draft = Draft(tokens, counts + 1, np.zeros_like(counts), forwards=forwards)
    order = torch.arange(tokens.shape[1]).expand_as(tokens)
    verdict = Verdict(order, torch.tensor(accepted), tokens[:, 0])
    distributions: Any = None
    return RoundResult(draft, verdict, distributions, np.full_like(counts, 10), np.array(accepted) + 1)


def speed(controller: Any, uniform: np.ndarray, c: float, most: int, sure: np.ndarray | None = None) -> float:
    """Tokens per unit of time of one row over rounds in which token i is accepted with probability chance[round, i].

    `sure` [rounds, most] has the drafter's own probabilities. A forward of the target takes 1, one of the drafter c.
    Every controller gets the same random numbers.
    """
    stage = context(written([[1]]))
    state = controller.start(stage) if hasattr(controller, "start") else None
    luck = np.random.RandomState(5).rand(*uniform.shape)
    tokens = time = 0.0
    for round_, row in enumerate(uniform):
        budget = int(controller.budget(most, stage, state)[0])
        drafted = 0
        while drafted < min(budget, most):
            said = torch.tensor([row[drafted] if sure is None else sure[round_, drafted]])
            stop = controller.stop(said, drafted, stage, state)
            drafted += 1
            if stop is not None and bool(stop[0]):
                drops = Trait.DROPS_LAST in controller.provides
                drafted -= drops
                time += c * drops
                break
        taken = int((luck[round_, :drafted] < row[:drafted]).cumprod().sum())
        tokens, time = tokens + taken + 1, time + 1 + c * drafted
        controller.observe(outcome([drafted], [taken], drafted), stage, state)
    return tokens / time


def best_fixed(uniform: np.ndarray, c: float, most: int) -> float:
    """The speed of the best k in hindsight, with the random numbers of `speed`."""
    rounds, taken = len(uniform), (np.random.RandomState(5).rand(*uniform.shape) < uniform).cumprod(1)
    return max((rounds + float(taken[:, :k].sum())) / (rounds * (1 + c * k)) for k in range(most + 1))


def switching(alphas: Sequence[float], each: int, most: int) -> np.ndarray:
    """Acceptance probabilities [rounds, most] that change every `each` rounds."""
    return np.repeat(np.array(alphas), each)[:, None].repeat(most, 1)


@contextmanager
def compared_states(truth: Callable[[PairState, list[int], list[int]], Tensor]) -> Iterator[list[float]]:
    """The errors of the state after every drafted node, relative to the largest entry of its `truth`.

    `truth` gets the drafter's state, the row's text and the tokens drafted up to the node.
    """
    errors: list[float] = []
    raw = PairState._raw

    def compared(self: PairState, draft: Draft, nodes: Tensor, *, subset: bool = False) -> Tensor:
        logits = raw(self, draft, nodes, subset=subset)
        for row, column in zip(*torch.where(nodes >= 0), strict=True):
            node = int(nodes[row, column])
            found = self.states[row, self.slot[row, node]]
            expected = truth(self, self.context.text.row(int(row)).tolist(), path(draft, int(row), node))
            errors.append(float((found - expected).abs().max() / expected.abs().max()))
        return logits

    with patch.object(PairState, "_raw", compared):
        yield errors
