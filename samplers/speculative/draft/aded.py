"""Drafts a tree by random walks through trigram counts, which learn from every forward of the target.

Adaptive Draft-Verification for Efficient Large Language Model Decoding, https://arxiv.org/abs/2407.12021

    p(w | u, v) = M[u, v, w] / sum of M[u, v]
    draft:   roll-outs from the text's last two tokens; from a node, token w with a weight of
             p(w) (1 + explore sqrt(N) / (1 + n_w)), N the node's visits and n_w those of w
    kept:    the `nodes` visited nodes of the highest product of p along their path
    update:  M[u, v, w] + 1 for each committed token;  M[u, v] + p of the target's k likeliest behind every node fed

The bonus of rarely visited tokens makes drafts diverse; without it (`explore=0`) they follow p alone.

Deviates from the paper: token w is drawn by its weight, where the paper takes the highest one; M begins with the row's
prompt, and may begin with a file of texts (`corpus`); with `decay`, what M knew of a pair fades when it occurs again.
Each row has a table of its own for one request. With `keep=true` all rows and requests that this sampler object decodes
with a model share one table.
Exact: greedy and distribution, with an exact acceptance: every drafted token is a point mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from pardec.models.model import LanguageModel

from ...limits import check_nodes
from ...registry import register
from ...request import Request
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, SpeculativeSampler, Uniforms
from ._history import PerRow
from ._store import read_texts
from ._tries import tree_draft
from ._trigrams import Trigrams, last_pair, roll_out


@register(
    "aded", stage="draft", paper="arXiv:2407.12021", exact="greedy", checked="reference:reference.naive_aded.tree joint"
)
@dataclass(frozen=True)
class Aded(Drafter):
    k: Annotated[int, "tokens of a roll-out, which is how deep the tree grows"] = 6
    nodes: Annotated[int, "drafted tokens, in all"] = 32
    rollouts: Annotated[int, "random walks a round"] = 32
    explore: Annotated[float, "weight of the bonus for rarely visited tokens"] = 0.5
    top: Annotated[int, "likeliest tokens of the target that a node teaches; 0: none"] = 4
    decay: Annotated[float, "factor of a pair's weights when it occurs again"] = 1.0
    corpus: Annotated[str | None, "a file of texts that the table begins with, one a line; .jsonl: ids, too"] = None
    update: Annotated[bool, "learn while decoding; false: the table stays as it begins"] = True
    keep: Annotated[bool, "one table for all rows and requests of the sampler object; drafts then depend on them"] = (
        False
    )

    def __post_init__(self) -> None:
        self.require("k", "nodes", "rollouts", least=1)
        self.require("explore", "top", least=0)
        self.require("decay", least=0, most=1)
        check_nodes("aded", self.nodes)
        # Not fields: the tables are no part of the sampler's identity.
        object.__setattr__(self, "_begun", WeakKeyDictionary[Any, Trigrams]())
        object.__setattr__(self, "_shared", WeakKeyDictionary[Any, Trigrams]())

    def width(self, model: LanguageModel) -> int:
        return 1 + self.nodes

    def admit(self, request: Request, sampler: SpeculativeSampler) -> None:
        if self.keep and self.update:
            self.refuse_kept_samples(request, sampler)

    def start(self, context: DecodeContext) -> PerRow[Trigrams]:
        text, count = context.text, len(context.text)
        self.admit(context.request, context.sampler)  # of a drafter within another, too
        if not self.keep:
            tables = [self._first(context.model).copy() for _ in range(count)]
        else:
            shared: WeakKeyDictionary[Any, Trigrams] = vars(self)["_shared"]
            stack = context.model.decoder
            if stack not in shared:
                shared[stack] = self._first(context.model).copy()
            tables = [shared[stack]] * count
        for at, table in enumerate(tables):
            if self.update or not self.keep:  # each row's own prompt is part of what its table begins with
                table.learn(text.row(at).tolist())
        return PerRow(tables)

    def _first(self, model: LanguageModel) -> Trigrams:
        """The table of the corpus, which is read once."""
        begun: WeakKeyDictionary[Any, Trigrams] = vars(self)["_begun"]
        if model.decoder not in begun:
            table = Trigrams(self.decay)
            for tokens in read_texts("aded", self.corpus, model) if self.corpus is not None else ():
                table.learn(tokens.tolist())
            begun[model.decoder] = table
        return begun[model.decoder]

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: PerRow[Trigrams]) -> Draft:
        text = context.text
        positions = torch.from_numpy(text.length[:, None] + np.arange(self.k)).to(text.device)
        draws = uniforms.noise(positions, "draft", self.rollouts).cpu().numpy()
        return tree_draft(
            text,
            [
                roll_out(table, last_pair(text.row(at)), draws[at, : room[at]], self.explore, self.nodes)
                for at, table in enumerate(state.rows)
            ],
        )

    def observe(self, outcome: RoundResult, context: DecodeContext, state: PerRow[Trigrams]) -> None:
        if not self.update:
            return
        text, draft = context.text, outcome.draft
        top = min(self.top, context.model.vocab_size)
        if top:
            likeliest = outcome.distributions.raw.softmax(-1).topk(top)
            probs, ids = likeliest.values.cpu().numpy(), likeliest.indices.cpu().numpy()
            tokens, parents = draft.tokens.cpu().numpy(), draft.parent.cpu().numpy()
        for at, table in enumerate(state.rows):
            before = int(outcome.before[at])
            if top:
                above = last_pair(text.row(at)[:before])[0]
                for node in range(int(draft.sizes[at])):
                    above = int(tokens[at, parents[at, node]]) if node else above
                    weights = zip(ids[at, node].tolist(), probs[at, node].tolist(), strict=True)
                    table.add((above, int(tokens[at, node])), weights)
            table.learn(text.row(at).tolist(), before)
