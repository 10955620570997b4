"""Runs Jacobi iterations on a window next to the text, collects their n-grams in a pool, and drafts from the pool.

Break the Sequential Dependency of LLM Inference Using Lookahead Decoding, https://arxiv.org/abs/2402.02057

    y[r+1, c] = argmax p(. | text, y[0, 1] .. y[0, c], y[1, c] .. y[r, c]),  r = 0 .. ngram - 2:  one more row a forward
    key y[0, c] -> y[1, c] .. y[ngram - 1, c] enters the pool;  draft = the pool's n-grams of the text's last token

Node (r, c) is fed at the position r + c after that token; its parent is (r - 1, c).

Deviates from the authors' code: the pool begins with the prompt's n-grams, which is optional there
(`pool_from_prompt=false`); any batch size; top-k, top-p and processors apply; guesses with equal prefixes share nodes;
a whole guess and the token after it may be accepted (`reference=true`: one token less); the window has its full width
while its rows still grow, and ends at the length limit.
Exact: greedy, and distribution with an exact acceptance: every guess is a point mass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...host_transfer import upload
from ...limits import MOST_NODES
from ...registry import register
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, Uniforms
from ..ops.trees import compact
from .jacobi_window import random_tokens
from .text_history import PerRow


class Pool:
    """Up to `most` continuations of each token, dropping the least recently added; None keeps all."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.after: dict[int, dict[tuple[int, ...], None]] = {}  # least recently added first

    def add(self, token: int, following: tuple[int, ...]) -> None:
        known = self.after.setdefault(token, {})
        known.pop(following, None)
        known[following] = None
        if self.most is not None and len(known) > self.most:
            del known[next(iter(known))]

    def learn(self, tokens: np.ndarray, size: int) -> None:
        """Adds every run of `size` tokens of a text [L], in order."""
        text = tokens.tolist()
        for start in range(len(text) - size + 1):
            self.add(text[start], tuple(text[start + 1 : start + size]))

    def continuations(self, token: int) -> tuple[tuple[int, ...], ...]:
        """The continuations of `token`, most recently added last."""
        return tuple(self.after.get(token, ()))


def trie(guesses: Iterable[tuple[int, ...]], first: int) -> list[tuple[int, int, int]]:
    """Token, parent and depth of each node of the tree of all `guesses` below node 0; indices start at `first`.

    >>> trie([(5, 6), (5, 7), (4,)], 10)
    [(5, 0, 1), (6, 10, 2), (7, 10, 2), (4, 0, 1)]
    """
    nodes: list[tuple[int, int, int]] = []
    index: dict[tuple[int, ...], int] = {(): 0}
    for guess in guesses:
        for depth in range(1, len(guess) + 1):
            path = guess[:depth]
            if path not in index:
                index[path] = first + len(nodes)
                nodes.append((path[-1], index[path[:-1]], depth))
    return nodes


@dataclass(slots=True)
class LookaheadState:
    """The window of each row and its pool, on the host."""

    grid: np.ndarray  # [B, R, W] int64: R iterates; column c of iterate r is the token r + c after the text
    lines: np.ndarray  # [B] the row's number of iterates, up to ngram - 1
    known: np.ndarray  # [B] the number of columns with iterates; the others are fresh
    nodes: np.ndarray  # [B, W] the draft's nodes of the row's last iterate, -1 if not fed
    pools: PerRow[Pool]


@register("lookahead", exact="greedy", checked="reference:reference.naive_jacobi.lookahead joint")
class Lookahead(Drafter):
    window: Annotated[int, "columns of the window, the text's last token included"] = 7
    ngram: Annotated[int, "tokens of the n-grams in the pool, the key included"] = 5
    guesses: Annotated[int, "most n-grams kept per first token, and drafted per round"] = 7
    init: Annotated[Literal["random", "prompt"], "fresh guesses: any token, or any of the prompt's"] = "prompt"
    pool_from_prompt: Annotated[bool, "the n-grams of the prompt, and then of the text, enter the pool"] = True
    reference: Annotated[bool, "as published: the last token of a guess is not drafted"] = False

    def __post_init__(self) -> None:
        self.require("window", "guesses", least=1)
        self.require("ngram", least=2)
        if (count := (self.ngram - 1) * (self.window + self.guesses)) > MOST_NODES:
            raise SpecError(
                f"lookahead: (ngram - 1) * (window + guesses) nodes must be at most {MOST_NODES}, got {count}"
            )

    def width(self, model: LanguageModel) -> int:
        return (self.ngram - 1) * (self.window + self.guesses)

    def start(self, context: DecodeContext) -> LookaheadState:
        text = context.text
        pools = PerRow(Pool(self.guesses) for _ in range(len(text)))
        if self.pool_from_prompt:
            for at, pool in enumerate(pools.rows):
                pool.learn(text.row(at), self.ngram)
        grid = np.zeros((len(text), 1, self.window), dtype=np.int64)
        return LookaheadState(grid, np.ones_like(text.length), np.zeros_like(text.length), grid[:, 0], pools)

    def propose(
        self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: LookaheadState
    ) -> Draft:
        self._top_up(context, uniforms, state)
        text, grid = context.text, state.grid
        # A row without room feeds node 0 only, others as deep as they can still commit.
        deep = np.where(remaining > 0, remaining + 1, 0)[:, None]
        line, column = (axis.reshape(-1) for axis in np.indices(grid.shape[1:]))
        above = np.where(line > 0, np.arange(line.size) - self.window, column - 1)
        tokens, parents, depths, real = self._guessed(state, remaining, grid.shape[1] * self.window)
        window = (line + column <= deep) & (line < state.lines[:, None])
        node_index = np.where(window, window.cumsum(1) - 1, -1).reshape(grid.shape)
        state.nodes = node_index[np.arange(len(grid)), state.lines - 1]

        def concatenated(own: np.ndarray, guessed: np.ndarray) -> Tensor:
            wide = np.broadcast_to(own, (len(grid), line.size))
            return torch.from_numpy(np.concatenate((wide, guessed), 1))

        tree = compact(
            concatenated(grid.reshape(len(grid), -1), tokens),
            concatenated(above, parents),
            concatenated(line + column, depths),
            concatenated(window, real),
        )
        drafted = np.arange(tree[0].shape[1]) >= window.sum(1)[:, None]
        nodes, above_, depth, verify = (upload(each, text.device) for each in (*tree[:3], drafted))
        levels = int(depths.max(initial=0))
        return Draft(nodes, tree[3], text.length - 1, above_, depth, levels=levels, verify=verify)

    def _top_up(self, context: DecodeContext, uniforms: Uniforms, state: LookaheadState) -> None:
        """Fills the window with fresh tokens, and its corner with the text's last token."""
        text, grid = context.text, state.grid
        positions = np.arange(grid[0].size) + text.length[:, None]
        random = random_tokens(self.init, torch.from_numpy(positions), context, uniforms).numpy()
        old = np.arange(self.window) < state.known[:, None]
        state.grid = np.where(old[:, None], grid, random.reshape(grid.shape))
        state.grid[:, 0, 0] = text.host[np.arange(len(text)), text.length - 1]

    def _guessed(self, state: LookaheadState, remaining: np.ndarray, first: int) -> tuple[np.ndarray, ...]:
        """Tokens, parents, depths and validity, all [B, G]: the pool's guesses as trees below node 0."""
        most = self.ngram - 2 if self.reference else self.ngram - 1
        corner = state.grid[:, 0, 0].tolist()
        rows = [
            trie((guess[: min(most, deep)] for guess in pool.continuations(last)), first)
            for pool, last, deep in zip(state.pools.rows, corner, remaining.tolist(), strict=True)
        ]
        size = max(map(len, rows))
        packed = np.zeros((4, len(rows), size), dtype=np.int64)
        for at, nodes in enumerate(rows):
            if nodes:
                packed[:3, at, : len(nodes)] = np.array(nodes).T
                packed[3, at, : len(nodes)] = 1
        return packed[0], packed[1], packed[2], packed[3].astype(bool)

    def to_observe(self, outcome: RoundResult, state: LookaheadState) -> Mapping[str, Tensor]:
        return {} if outcome.draft.parents is None else {"pick": outcome.distributions.pick}

    def observe(self, outcome: RoundResult, context: DecodeContext, state: LookaheadState) -> None:
        if outcome.draft.parents is None:  # the prompt's round
            self._learn_text(outcome, context, state)
            return
        rows, nodes = np.arange(len(state.nodes)), state.nodes
        grown = np.pad(state.grid, ((0, 0), (0, 1), (0, 0)))
        pick = outcome.read("pick", lambda: self.to_observe(outcome, state))["pick"]
        grown[rows, state.lines] = pick[rows[:, None], nodes.clip(min=0)]
        full = state.lines + 1 == self.ngram
        for at in np.flatnonzero(full).tolist():
            for key, *following in grown[at].T[nodes[at] >= 0].tolist():
                state.pools.rows[at].add(key, tuple(following))
        grown[full, :-1] = grown[full, 1:]
        shift = outcome.gained - full  # dropping the oldest iterate already shifts the window by one position
        state.lines = state.lines + ~full
        grown = grown[:, : state.lines.max()]
        self._learn_text(outcome, context, state)
        column = np.minimum(shift[:, None] + np.arange(self.window), self.window - 1)
        state.grid = np.take_along_axis(grown, column[:, None], 2)
        state.known = np.maximum(self.window - shift, 0)

    def _learn_text(self, outcome: RoundResult, context: DecodeContext, state: LookaheadState) -> None:
        """Adds the n-grams that end in the round's committed tokens to the pools, with `pool_from_prompt`."""
        if self.pool_from_prompt:
            for at, pool in enumerate(state.pools.rows):
                fresh = context.text.row(at)[max(outcome.before[at] - self.ngram + 1, 0) :]
                pool.learn(fresh, self.ngram)
