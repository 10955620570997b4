"""Iterates a window of guesses beside the text, keeps the n-grams that come of it, and drafts those that fit.

Break the Sequential Dependency of LLM Inference Using Lookahead Decoding, https://arxiv.org/abs/2402.02057

    y[r+1, c] = argmax p(. | text, y[0, 1] .. y[0, c], y[1, c] .. y[r, c]),  r = 0 .. ngram - 2:  one more row a forward
    key y[0, c] -> y[1, c] .. y[ngram - 1, c] enters the pool;  draft = what the pool has behind the text's last token

Node (r, c) is fed at the position r + c behind that token, on whose branch (r - 1, c) is its parent.

Deviates from the authors' code: the pool begins with the prompt's n-grams, which there is off unless asked for
(`pool_from_prompt=false`); any batch; top-k, top-p and processors count; guesses with equal beginnings share
their nodes; a whole guess may be accepted and the token behind it comes too (`reference=true`: one token less); the
window has its full width while it still grows down, and ends where the text must.
Exact: greedy, and distribution with an exact acceptance: every guess is a point mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...limits import MOST_NODES
from ...registry import register
from ..contracts import DecodeContext, Draft, Drafter, Outcome, Uniforms
from ..trees import compact
from ._history import PerRow
from ._ngrams import Pool, trie
from ._window import any_of


@dataclass(slots=True)
class Lines:
    """The window of each row and its pool, on the host."""

    grid: np.ndarray  # [B, R, W] int64: R iterates of the places behind the text, iterate r `r + c` behind its end
    lines: np.ndarray  # [B] how many of them the row has, up to ngram - 1
    known: np.ndarray  # [B] the first so many columns are iterates, the others still to be made
    nodes: np.ndarray  # [B, W] which nodes of the draft were the row's last iterate, -1 where not fed
    pools: PerRow[Pool]


@register("lookahead", stage="draft", paper="arXiv:2402.02057", exact="greedy", checked="reference joint")
@dataclass(frozen=True)
class Lookahead(Drafter):
    window: Annotated[int, "columns of the window, the text's last token included"] = 7
    ngram: Annotated[int, "tokens of the n-grams in the pool, the key included"] = 5
    guesses: Annotated[int, "n-grams kept behind each token, and drafted"] = 7
    init: Annotated[Literal["random", "prompt"], "fresh guesses: any token, or any of the prompt's"] = "prompt"
    pool_from_prompt: Annotated[bool, "the n-grams of the prompt, and then of the text, enter the pool"] = True
    reference: Annotated[bool, "as published: the last token of a guess is not drafted"] = False

    def __post_init__(self) -> None:
        self.require("window", "guesses", least=1)
        self.require("ngram", least=2)
        if (count := (self.ngram - 1) * (self.window + self.guesses)) > MOST_NODES:
            raise SpecError(
                f"lookahead: (ngram - 1) * (window + guesses), its queries, is at most {MOST_NODES}, got {count}"
            )

    def width(self, model: LanguageModel) -> int:
        return (self.ngram - 1) * (self.window + self.guesses)

    def start(self, context: DecodeContext) -> Lines:
        text = context.text
        pools = PerRow(Pool(self.guesses) for _ in range(len(text)))
        if self.pool_from_prompt:
            for at, pool in enumerate(pools.rows):
                pool.learn(text.row(at), self.ngram)
        grid = np.zeros((len(text), 1, self.window), dtype=np.int64)
        return Lines(grid, np.ones_like(text.length), np.zeros_like(text.length), grid[:, 0], pools)

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: Lines) -> Draft:
        self._top_up(context, uniforms, state)
        text, grid = context.text, state.grid
        # A row without room takes one more token, whatever is fed. Another feeds what it can still commit.
        deep = np.where(room > 0, room + 1, 0)[:, None]
        line, column = (axis.reshape(-1) for axis in np.indices(grid.shape[1:]))
        above = np.where(line > 0, np.arange(line.size) - self.window, column - 1)
        tokens, parents, depths, kept = self._guessed(state, room, grid.shape[1] * self.window)
        window = (line + column <= deep) & (line < state.lines[:, None])
        placed = np.where(window, window.cumsum(1) - 1, -1).reshape(grid.shape)
        state.nodes = placed[np.arange(len(grid)), state.lines - 1]
        device = text.device

        def joined(own: np.ndarray, guessed: np.ndarray) -> torch.Tensor:
            wide = np.broadcast_to(own, (len(grid), line.size))
            return torch.from_numpy(np.concatenate((wide, guessed), 1)).to(device)

        tree = compact(
            joined(grid.reshape(len(grid), -1), tokens),
            joined(above, parents),
            joined(line + column, depths),
            joined(window, kept),
        )
        drafted = torch.arange(tree[0].shape[1], device=device) >= torch.from_numpy(window.sum(1)).to(device)[:, None]
        levels = int(depths.max(initial=0))
        return Draft(tree[0], tree[3], text.length - 1, tree[1], tree[2], levels=levels, verify=drafted)

    def _top_up(self, context: DecodeContext, uniforms: Uniforms, state: Lines) -> None:
        """New tokens where the window has none, and the text's last one in its corner."""
        text, grid = context.text, state.grid
        places = np.arange(grid[0].size) + text.length[:, None]
        sampled = any_of(self.init, torch.from_numpy(places).to(text.device), context, uniforms).cpu().numpy()
        old = np.arange(self.window) < state.known[:, None]
        state.grid = np.where(old[:, None], grid, sampled.reshape(grid.shape))
        state.grid[:, 0, 0] = text.host[np.arange(len(text)), text.length - 1]

    def _guessed(self, state: Lines, room: np.ndarray, first: int) -> tuple[np.ndarray, ...]:
        """Tokens, parents, depths and which there are, all [B, G]: the pool's guesses as trees below node 0."""
        most = self.ngram - 2 if self.reference else self.ngram - 1
        corner = state.grid[:, 0, 0].tolist()
        rows = [
            trie((guess[: min(most, deep)] for guess in pool.behind(last)), first)
            for pool, last, deep in zip(state.pools.rows, corner, room.tolist(), strict=True)
        ]
        size = max(map(len, rows))
        made = np.zeros((4, len(rows), size), dtype=np.int64)
        for at, nodes in enumerate(rows):
            if nodes:
                made[:3, at, : len(nodes)] = np.array(nodes).T
                made[3, at, : len(nodes)] = 1
        return made[0], made[1], made[2], made[3].astype(bool)

    def observe(self, outcome: Outcome, context: DecodeContext, state: Lines) -> None:
        if outcome.draft.parents is None:  # the prompt's round
            return
        rows, nodes = np.arange(len(state.nodes)), state.nodes
        grown = np.pad(state.grid, ((0, 0), (0, 1), (0, 0)))
        grown[rows, state.lines] = outcome.distributions.pick.cpu().numpy()[rows[:, None], nodes.clip(min=0)]
        full = state.lines + 1 == self.ngram
        for at in np.flatnonzero(full).tolist():
            for key, *following in grown[at].T[nodes[at] >= 0].tolist():
                state.pools.rows[at].add(key, tuple(following))
        grown[full, :-1] = grown[full, 1:]
        shift = outcome.gained - full  # one line up is one place further already
        state.lines = state.lines + ~full
        grown = grown[:, : state.lines.max()]
        if self.pool_from_prompt:
            for at, pool in enumerate(state.pools.rows):
                fresh = context.text.row(at)[max(outcome.before[at] - self.ngram + 1, 0) :]
                pool.learn(fresh, self.ngram)
        column = np.minimum(shift[:, None] + np.arange(self.window), self.window - 1)
        state.grid = np.take_along_axis(grown, column[:, None], 2)
        state.known = np.maximum(self.window - shift, 0)
