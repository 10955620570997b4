"""Makes the graph of states that `freedave:graph=` drafts, from a sampler's commits on some problems of a task.

    python scripts/draft_graph.py tiny-llada --task arithmetic --problems 32 --drafts 6
    python scripts/draft_graph.py tiny-dream --task lists -s threshold:tau=0.9 --drafts 10 --own > graph.txt

The graph goes to standard output, and the counts of the most frequent states to standard error. States are counted on
the first problems of the task, so a comparison should use other problems (`pardec compare --seed`).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pardec  # noqa: E402
from pardec.models.errors import PardecError, SpecError  # noqa: E402
from pardec.samplers import registry  # noqa: E402
from pardec.samplers.host_transfer import download  # noqa: E402
from pardec.samplers.masked.branch.draft_sets import Commit, Node, key, text_of  # noqa: E402
from pardec.samplers.masked.contracts import Branch, Hypotheses, MaskedSampler  # noqa: E402

State = tuple[int, frozenset[Commit]]  # number of steps from the row, and their commits


@dataclass(eq=False)
class _View:
    """The ranks in one forward's proposal, and the tokens committed since."""

    ranks: dict[int, int]  # position -> its rank, for positions open after the commits
    tokens: dict[int, list[int]]  # position -> its tokens, the likeliest first
    committed: frozenset[Commit] = frozenset()
    steps: int = 0


@dataclass(frozen=True, eq=False)
class StepCounts(Branch):
    """Counts the states that rows reach; drafts nothing and changes no token.

    `MaskedSampler.branch` of the sampler to be observed, at temperature 0.
    """

    steps: int = 4  # how many steps after a forward are counted
    positions: int = 8  # how many ranks of positions are counted
    tokens: int = 2  # how many ranks of tokens are counted
    counts: Counter[State] = field(default_factory=Counter)
    _views: dict[int, list[_View]] = field(default_factory=dict)

    @property
    def depths(self) -> tuple[int, ...]:
        return (0,)

    def survivors(self, hypotheses: Hypotheses) -> Tensor:
        canvas, proposal = hypotheses.canvas, hypotheses.proposal
        chosen = download(hypotheses.chosen & canvas.eligible)
        tokens, eligible = download(hypotheses.tokens), download(proposal.eligible)
        order = download(proposal.score.argsort(dim=1, descending=True, stable=True))
        for at, row in enumerate(canvas.rows.tolist()):
            columns = np.flatnonzero(chosen[at])
            positions = canvas.window_host[at]
            new = {int(positions[column]): int(tokens[at, column]) for column in columns}
            views = [view for view in self._views.get(row, []) if self._count(view, new)]
            rest = [column for column in order[at] if eligible[at, column] and not chosen[at, column]][: self.positions]
            if rest:
                logits = proposal.evidence.distribution.logits_at(at * chosen.shape[1] + np.array(rest))
                likeliest = logits.topk(min(self.tokens, logits.shape[1]), dim=1).indices.tolist()
                names = [int(positions[column]) for column in rest]
                ranks = {position: rank for rank, position in enumerate(names)}
                views.append(_View(ranks, dict(zip(names, likeliest, strict=True))))
            self._views[row] = views
        return torch.arange(len(canvas), device=canvas.tokens.device)

    def _count(self, view: _View, new: Mapping[int, int]) -> bool:
        """Counts the state after the tokens `new`; returns False if it is not a counted state, or is the last one."""
        if not all(position in view.ranks and token in view.tokens[position] for position, token in new.items()):
            return False
        commits = {(view.ranks[at], view.tokens[at].index(token)) for at, token in new.items()}
        view.committed, view.steps = view.committed | commits, view.steps + 1
        self.counts[view.steps, view.committed] += 1
        return view.steps < self.steps

    def forget(self) -> None:
        """Called between requests: forgets the rows of the last request."""
        self._views.clear()


def draft_graph(counts: Mapping[State, int], drafts: int, *, parents: bool = True) -> str:
    """The best graph of at most `drafts` nodes by the counts, as text for `freedave:graph=`.

    Structuring The Future: Diffusion LLM Speculative Decoding via Calibrated Draft Graphs (Spiffy),
    https://arxiv.org/abs/2509.18085

        graph of D nodes = argmax sum over its nodes q of
            (count(q) + sum over its nodes p one step before q of count(p))

    count(q) is how often, over a few samples, what the sampler committed in the steps after a forward was q, by the
    ranks of that forward. Nodes are added greedily: each time the state that adds the most, among those one step after
    a node or the row. The paper publishes no code, and how it searches is not known. With `parents=False` only count(q)
    is summed: the second sum prefers states after the most frequent one, however rare they are themselves.

    `parents` says whether a node also counts what those before it do. Raises SpecError for counts of no state, and
    fewer than one draft.
    """
    if drafts < 1 or not counts:
        raise SpecError(
            f"a draft graph needs drafts >= 1 and counted states, got drafts={drafts} and {len(counts)} states",
            hint="count the steps of more samples",
        )
    graph: dict[State, Node] = {}
    while len(graph) < drafts:
        gains = {state: _gain(state, graph, counts, parents) for state in counts if state not in graph}
        gains = {state: gain for state, gain in gains.items() if gain}
        if not gains:
            break
        state = min(gains, key=lambda each: (-gains[each], each[0], sorted(each[1])))
        parent = next((node for other, node in graph.items() if _leads(other, state)), ())
        graph[state] = (*parent, tuple(sorted(state[1] - key(parent))))
    return text_of(sorted(graph.values(), key=lambda node: (len(node), node)))


def _leads(one: State, other: State) -> bool:
    return other[0] == one[0] + 1 and one[1] < other[1]


def _gain(state: State, graph: Mapping[State, Node], counts: Mapping[State, int], parents: bool) -> int:
    """The gain from adding `state`; 0 if neither the row nor a node leads to it."""
    before = [other for other in graph if _leads(other, state)]
    if state[0] > 1 and not before:
        return 0
    if not parents:
        return counts[state]
    children = sum(_leads(state, other) for other in graph)
    return counts[state] * (1 + children) + sum(counts[other] for other in before)


def counted(model: pardec.Model, prompts: list[str], spec: str, *, tokens: int, batch: int) -> StepCounts:
    """Counts the states that the sampler reaches on these prompts, in batches."""
    sampler, counts = registry.resolve(spec, "masked"), StepCounts()
    assert isinstance(sampler, MaskedSampler), "asked for by name"
    if sampler.branch is not None:
        raise SpecError(f"{spec} has drafts already", hint="name the sampler without them")
    for start in range(0, len(prompts), batch):
        some = prompts[start : start + batch]
        model.generate(some, sampler=replace(sampler, branch=counts), max_new_tokens=tokens)
        counts.forget()
    return counts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--task", required=True, help="task whose prompts are decoded")
    parser.add_argument("--problems", type=int, default=32)
    parser.add_argument("-s", "--sampler", default="sequential", help="sampler that freedave is combined with")
    parser.add_argument("--drafts", type=int, default=6, help="nodes of the graph")
    parser.add_argument("--own", action="store_true", help="count only a node's own states, not those before it")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per answer")
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args(arguments)
    try:
        model = pardec.load(options.model)
        prompts = [problem.prompt for problem in pardec.task(options.task).problems(n=options.problems)]
        counts = counted(model, prompts, options.sampler, tokens=options.tokens, batch=options.batch).counts
        print(draft_graph(counts, options.drafts, parents=not options.own))
    except PardecError as error:
        raise SystemExit(f"error: {error}") from None
    for (steps, commits), count in counts.most_common(10):
        print(f"{count} times after {steps} steps: {text_of([(tuple(sorted(commits)),)])}", file=sys.stderr)


if __name__ == "__main__":
    main()
