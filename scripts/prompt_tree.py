"""Finds the tree of paths and prompt tokens after each node that gains the most for hit rates; prints a spec.

    python scripts/prompt_tree.py tiny-llama-prompts --rates "0.6 0.15 / 0.4 0.1 / 0.3 0.1" --inputs 24
    python scripts/prompt_tree.py FOLDER --rates rates.json --seconds "8:0.021 16:0.024 32:0.035 64:0.061"

Rates are how often the token of rank 0, 1, .. is right after a node of depth 0, 1, ..: of a text, or of a file with
lists of lists. With `--seconds`, times of forwards by their inputs, the number of inputs is chosen, too: the tree of
the most tokens per second. Measure them where the tree is to run: on a processor they grow with every input.

PPD: Hardware-Aware Parallel Prompt Decoding for Memory-Efficient Acceleration of LLM Inference,
https://arxiv.org/abs/2405.18628

    a round is in state m, 0 .. s, if its last node carried m prompt tokens: the tree is then m levels deep
    P_m(n) = value of n - values of its children in that tree: how often n is the last accepted node
    A[m, j] = sum of P_m(n) over the nodes that carry j;  pi = pi A;  f = sum of pi_m f_m,  f_m = sum of values, 1 + ..
    of all prompt tokens the one is dropped whose loss P(n) (f_j - f_(j-1)) is least, j the number that n carries

Deviates from the authors' code: s states and not 3; all states have one tree, cut to their depth, so that a spec can
name it; P is that of the steady state; a node may end up with none, but for node 0, without which a round that accepts
nothing would be the last to draft; the loop ends where the limit is met.

`best_paths` gives the tree of the longest expected acceptance for given hit rates of ranks:

    rates a[d][r]: how often the token of rank r after a node of depth d is right;  a node's value is the product of
    the rates on its path;  the accepted tokens of a tree, expected for independent heads, are the sum of its values

A node's value is at most its parent's. Where rates fall with the rank, it is also at most that of its sibling of the
rank before, so that adding the greatest value in reach, N times, gives the best tree of N nodes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pardec.models.errors import SpecError  # noqa: E402
from pardec.samplers.speculative.ops.trees import Path as NodePath  # noqa: E402
from pardec.samplers.speculative.shape.paths_tree import tree_text  # noqa: E402

Rates = Sequence[Sequence[float]]


def best_paths(rates: Rates, nodes: int) -> tuple[NodePath, ...]:
    """The `nodes` paths of the greatest values, in the order in which they were added; fewer if there are no more.

    A rank is only added after the one before it, whatever the rates say. Of equal values the shorter path, and then
    the one of lower ranks, comes first.

    >>> best_paths([[0.6, 0.2], [0.5, 0.1]], 3)
    ((0,), (0, 0), (1,))
    """
    heap: list[tuple[float, int, NodePath]] = []
    chosen: list[NodePath] = []

    def offer(path: NodePath) -> None:
        if len(path) <= len(rates) and path[-1] < len(rates[len(path) - 1]):
            heappush(heap, (-value(rates, path), len(path), path))

    offer((0,))
    while heap and len(chosen) < nodes:
        path = heappop(heap)[-1]
        chosen.append(path)
        offer((*path, 0))
        offer((*path[:-1], path[-1] + 1))
    return tuple(chosen)


def value(rates: Rates, path: NodePath) -> float:
    """The product of the rates along `path`."""
    product = 1.0
    for level, rank in zip(rates, path, strict=False):
        product *= level[rank]
    return product


def accepted(rates: Rates, paths: Sequence[NodePath]) -> float:
    """The tokens of the tree that are accepted in a round, expected for independent heads."""
    return sum(value(rates, path) for path in paths)


@dataclass(frozen=True, slots=True)
class PromptTree:
    """A tree, and the prompt tokens after each of its nodes."""

    paths: tuple[NodePath, ...]  # sorted, node 0 not among them
    carried: tuple[int, ...]  # prompt tokens after node 0 and after each path
    tokens: float  # expected tokens per round in the steady state

    @property
    def inputs(self) -> int:
        """The most tokens and prompt tokens that a round feeds."""
        return len(self.carried) + sum(self.carried)

    def spec(self, name: str, steps: int) -> str:
        """The spec that drafts this tree with the prompt tokens of the module `name`."""
        levels: dict[int, list[str]] = {}
        for depth, count in zip((0, *map(len, self.paths)), self.carried, strict=True):
            levels.setdefault(depth, []).append(str(count))
        carry = "-".join(counts[0] if len(set(counts)) == 1 else ".".join(counts) for counts in levels.values())
        return f'prompts:name="{name}",k={steps},carry={carry}+paths:tree={tree_text(self.paths)},top=true'


def prompt_tree(rates: Rates, limit: int) -> PromptTree:
    """The tree that gains the most tokens per round, of those that feed at most `limit` inputs.

    Args:
        rates: how often the token of each rank after a node of each depth is right; their length is the number of
            prompt tokens after a node at most.
        limit: tokens and prompt tokens together, at least 3: the last token, a draft, and a prompt token.
    """
    if limit < 3 or not rates or not all(rates):
        raise SpecError(
            "a tree with prompt tokens needs rates of at least 1 step and a limit of at least 3, "
            f"got {len(rates)} steps and limit={limit}"
        )
    for depth, level in enumerate(rates):
        if min(level) < 0 or sum(level) >= 1 or list(level) != sorted(level, reverse=True):
            raise SpecError(
                f"hit rates of depth {depth} must fall with the rank and sum to less than 1, got {list(level)}",
                hint="a rate is the share of tokens that have this rank",
            )
    best: PromptTree | None = None
    for count in range(1, limit - 1):
        paths = tuple(sorted(best_paths(rates, count), key=lambda path: (len(path), path)))
        if len(paths) < count:
            break  # there are no more
        tree = _dropped(rates, paths, limit)
        if best is None or tree.tokens > best.tokens + 1e-12:
            best = tree
    assert best is not None
    return best


def fastest_tree(rates: Rates, seconds: Mapping[int, float]) -> PromptTree:
    """The tree of the most tokens per second, where a forward of n inputs takes seconds[n], as measured."""
    trees = {limit: prompt_tree(rates, limit) for limit in seconds if limit >= 3}
    if not trees:
        raise SpecError("the measured forwards have fewer than 3 inputs", hint="measure more, such as 4, 8, 16, 32")
    return trees[max(trees, key=lambda limit: trees[limit].tokens / seconds[limit])]


def steady(rates: Rates, paths: tuple[NodePath, ...], carried: tuple[int, ...]) -> tuple[float, np.ndarray, np.ndarray]:
    """Expected tokens per round, how often each node is the last one [N + 1], and the tokens of each state [s + 1]."""
    return _steady(_last(rates, paths), _gains(rates, paths), carried)


def _dropped(rates: Rates, paths: tuple[NodePath, ...], limit: int) -> PromptTree:
    """The best prompt tokens for this tree within the limit."""
    carried = [len(rates)] * (len(paths) + 1)
    last, gains = _last(rates, paths), _gains(rates, paths)
    tokens, share, _ = _steady(last, gains, tuple(carried))
    while len(carried) + sum(carried) > limit:
        loss = [
            share[n] * (gains[count] - gains[count - 1]) if count > (n == 0) else np.inf
            for n, count in enumerate(carried)
        ]
        least = min(loss)
        carried[max(n for n, each in enumerate(loss) if each <= least + 1e-15)] -= 1  # the deepest of equal ones
        tokens, share, _ = _steady(last, gains, tuple(carried))
    return PromptTree(paths, tuple(carried), tokens)


def _last(rates: Rates, paths: tuple[NodePath, ...]) -> np.ndarray:
    """[s + 1, N + 1]: how often each node is the last accepted one, in each state."""
    index = {(): 0} | {path: n for n, path in enumerate(paths, 1)}
    last = np.zeros((len(rates) + 1, len(index)))
    for path, n in index.items():
        reached = value(rates, path)
        last[len(path) :, n] += reached
        if path:
            last[len(path) :, index[path[:-1]]] -= reached
    return last


def _gains(rates: Rates, paths: tuple[NodePath, ...]) -> np.ndarray:
    """[s + 1]: the expected tokens of a round in each state."""
    return np.array([1 + sum(value(rates, path) for path in paths if len(path) <= m) for m in range(len(rates) + 1)])


def _steady(last: np.ndarray, gains: np.ndarray, carried: tuple[int, ...]) -> tuple[float, np.ndarray, np.ndarray]:
    states = len(gains)
    step = last @ (np.array(carried)[:, None] == np.arange(states))  # [s + 1, s + 1]
    # In every state node 0 may be the last accepted one, and leads to one state: so the steady state is unique.
    system = np.vstack((step.T - np.eye(states), np.ones(states)))
    share = np.linalg.lstsq(system, np.array([0.0] * states + [1.0]), rcond=None)[0]
    return float(share @ gains), share @ last, gains


def read_rates(text: str) -> list[list[float]]:
    """Rates from a JSON file, or from ranks separated by spaces and depths by '/'."""
    if text.endswith(".json"):
        return [list(map(float, level)) for level in json.loads(Path(text).read_text())]
    return [list(map(float, level.split())) for level in text.split("/")]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", help="the draft module of prompt tokens")
    parser.add_argument("--rates", required=True)
    sizes = parser.add_mutually_exclusive_group(required=True)
    sizes.add_argument("--inputs", type=int, help="most tokens and prompt tokens per round")
    sizes.add_argument("--seconds", help="times of measured forwards, as inputs:seconds")
    options = parser.parse_args(arguments)
    try:
        rates = read_rates(options.rates)
        if options.seconds is None:
            tree = prompt_tree(rates, options.inputs)
        else:
            pairs = (entry.split(":") for entry in options.seconds.split())
            tree = fastest_tree(rates, {int(inputs): float(seconds) for inputs, seconds in pairs})
    except (SpecError, ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    print(tree.spec(options.name, len(rates)))
    print(f"{tree.tokens:.3f} tokens per round expected, {tree.inputs} inputs", file=sys.stderr)


if __name__ == "__main__":
    main()
