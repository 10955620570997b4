"""Drafters for tests of the verify loop: right, wrong, or a random tree of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessorList

from pardec.models.model import LanguageModel
from pardec.samplers.events import Finished
from pardec.samplers.speculative.accept.greedy import Greedy
from pardec.samplers.speculative.contracts import (
    DecodeContext,
    Draft,
    Drafter,
    RoundResult,
    SpeculativeSampler,
    Uniforms,
)
from pardec.samplers.speculative.draft.jacobi_window import slice_from
from pardec.samplers.speculative.draft.sjd import Sjd, WindowState
from tests.samplers.ar_toys import logits, plain_greedy, rows, speculation

VOCAB = 8
LENGTHS = (3, 9, 1, 6)


@dataclass(frozen=True)
class Forest(Drafter):
    """Random trees, different in every row and round, that hold each right continuation with probability `right`.

    Its drafts depend on the row's own text alone, as every drafter's must.
    """

    right: float = 0.6
    nodes: int = 7
    over: int = 0  # levels drafted beyond what there is room for
    truth: Callable[[Sequence[int]], int] | None = None  # the right token after a text

    def width(self, model: LanguageModel) -> int:
        return self.nodes + 1

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: None) -> Draft:
        text, vocab = context.text, context.model.vocab_size
        made = []
        for at in range(len(text)):
            own, deep = text.row(at).tolist(), int(room[at]) + self.over
            dice = np.random.RandomState([len(own), *own[-3:]])
            nodes = [(own[-1], -1, 0)]
            paths = [own]
            for _ in range(dice.randint(0, self.nodes + 1)):
                parent = dice.randint(len(nodes))
                taken = {token for token, above, _ in nodes if above == parent}
                right = self.truth(paths[parent]) if self.truth else plain_greedy(context.model, paths[parent], 1)[-1]
                token = right if dice.random() < self.right else int(dice.randint(vocab))
                if token not in taken and nodes[parent][2] < deep:
                    nodes.append((token, parent, nodes[parent][2] + 1))
                    paths.append([*paths[parent], token])
            made.append(nodes)
        sizes = np.array(list(map(len, made)))
        padded = [[*nodes, *[(0, 0, 1)] * (sizes.max() - len(nodes))] for nodes in made]
        tokens, parents, depths = torch.tensor(padded).to(text.device).unbind(-1)
        return Draft(tokens, sizes, text.length - 1, parents, depths)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: None) -> None:
        return


@dataclass(frozen=True)
class Chain(Drafter):
    """Drafts `k` tokens of `guess`, given the text so far; respects the row's remaining length unless `over`."""

    guess: Callable[[list[int]], int]
    k: int = 4
    over: int = 0

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: None) -> Draft:
        counts = np.minimum(room + self.over, self.k)
        drafted = np.zeros((len(room), self.k), dtype=np.int64)
        for at in range(len(room)):
            text = context.text.row(at).tolist()
            for step in range(int(counts[at])):
                drafted[at, step] = self.guess(text)
                text.append(int(drafted[at, step]))
        return Draft.chain(context.text, torch.from_numpy(drafted), counts)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: None) -> None:
        return


def right(model: LanguageModel) -> Callable[[list[int]], int]:
    return lambda text: plain_greedy(model, text, 1)[-1]


def wrong(model: LanguageModel) -> Callable[[list[int]], int]:
    return lambda text: (plain_greedy(model, text, 1)[-1] + 1) % model.vocab_size


def greedy(drafter: Any) -> SpeculativeSampler:
    return speculation(drafter, Greedy())


def check_plain(model: LanguageModel, done: Finished, given: Sequence[Sequence[int]], new: int) -> None:
    assert rows(done) == [plain_greedy(model, prompt, new) for prompt in given]


def processed_greedy(model: LanguageModel, prompt: Sequence[int], new: int, processors: Sequence[Any]) -> list[int]:
    """Greedy decoding with transformers' processors, one whole forward per token."""
    text = list(prompt)
    for _ in range(new):
        scores = LogitsProcessorList(processors)(torch.tensor([text]), logits(model, [text])[:, -1])
        text.append(int(scores.argmax()))
    return text


class Literal(Sjd):
    """Couples a draw with the token that was one position before."""

    def observe(self, outcome: RoundResult, context: DecodeContext, state: WindowState) -> None:
        super().observe(outcome, context, state)
        draft, gained, most = outcome.draft, outcome.gained, state.distribution.shape[1]
        state.old = slice_from(draft.tokens, gained, most)
        if draft.q is not None and draft.is_point_mass is not None:
            state.q, state.point = slice_from(draft.q, gained, most), slice_from(draft.is_point_mass, gained, most)
