"""Sets of drafted states: the tokens that each hypothesis adds to its row per step, and their text form.

A node is a state some steps further than the row, as these steps: each commits positions of given ranks, by the scores
of the row's last forward (0 the surest), with the likeliest token there or another one. `0`, `1`, `0.1` and `0_2b` are
the surest position; the second; the first and then the second; the surest together with the third, where the second
likeliest token stands (`c` is the third likeliest, and so on). Nodes are joined by `-`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from heapq import heappop, heappush
from pathlib import Path

import numpy as np

from pardec.models.errors import SpecError

Commit = tuple[int, int]  # the rank of a position, and that of its token
Node = tuple[tuple[Commit, ...], ...]  # the commits of each step

_COMMIT = re.compile(r"(\d{1,4})([b-z]?)")
_NODES = re.compile(rf"{_COMMIT.pattern}(?:[_.-]{_COMMIT.pattern})*")
_MOST = 64  # nodes: each is a row of every forward


def key(node: Node) -> frozenset[Commit]:
    """The commits of a node, independent of their order."""
    return frozenset(commit for step in node for commit in step)


def follows(node: Node, parent: Node) -> bool:
    """Whether `node` commits everything that `parent` does and one step more."""
    return len(node) == len(parent) + 1 and key(parent) < key(node)


def text_of(nodes: Iterable[Node]) -> str:
    """The text form of the nodes.

    >>> text_of([(((0, 0),),), (((0, 0),), ((1, 1), (2, 0)))])
    '0-0.1b_2'
    """

    def commit(position: int, token: int) -> str:
        return f"{position}{chr(ord('a') + token) if token else ''}"

    return "-".join(".".join("_".join(commit(*each) for each in step) for step in node) for node in nodes)


def read_graph(text: str) -> str:
    """The text of a graph: `text`, or the content of the file it names. Raises SpecError if it is neither."""
    if not _NODES.fullmatch(text):
        file = Path(text)
        if not file.is_file():
            raise SpecError(
                f"freedave: graph={text!r} is neither a draft graph nor a file that contains one",
                hint='nodes are written "0-1-0.1", or made by scripts/draft_graph.py',
            )
        text = "".join(file.read_text(encoding="utf-8", errors="replace").split())
        if not _NODES.fullmatch(text):
            raise SpecError(
                f"freedave: the file graph={file} contains no draft graph", hint='nodes are written "0-1-0.1"'
            )
    return text


@cache
def read_nodes(text: str) -> tuple[Node, ...]:
    """The nodes of a graph, fewest steps first. Raises SpecError for a repeated node or one without a parent."""
    nodes = tuple(sorted(map(_read_node, text.split("-")), key=len))
    if len(nodes) > _MOST:
        raise SpecError(f"freedave: a graph has at most {_MOST} nodes, got {len(nodes)}", hint="leave some out")
    states = {(len(node), key(node)) for node in nodes}
    if len(states) < len(nodes):
        twice = next(node for at, node in enumerate(nodes) if any(_same(node, other) for other in nodes[:at]))
        raise SpecError(f"freedave: the graph has two nodes for the state {text_of([twice])}", hint="leave one out")
    for node in nodes:
        if len(node) > 1 and not any(follows(node, other) for other in nodes):
            raise SpecError(
                f"freedave: the node {text_of([node])} is never reached: the graph has no node one step before it",
                hint=f"add {text_of([node[:-1]])}",
            )
    return nodes


def _same(one: Node, other: Node) -> bool:
    return len(one) == len(other) and key(one) == key(other)


def _read_node(text: str) -> Node:
    steps = tuple(
        tuple((int(rank), ord(token) - ord("a") if token else 0) for rank, token in _COMMIT.findall(step))
        for step in text.split(".")
    )
    ranks = [rank for step in steps for rank, _ in step]
    if len(set(ranks)) < len(ranks):
        raise SpecError(f"freedave: the node {text} commits a position twice", hint="a node names each rank once")
    return steps


@cache
def tree_tokens(drafts: int, width: int) -> tuple[tuple[int, ...], ...]:
    """For each node of a tree, by depth: the ranks of the tokens that its steps commit.

    At each step the surest position takes one of its `width` likeliest tokens. A node costs its steps and the ranks of
    its tokens; the `drafts` cheapest are taken, the deepest of equally cheap ones first.

    >>> tree_tokens(4, 2)
    ((0,), (1,), (0, 0), (0, 0, 0))
    """
    heap: list[tuple[int, int, tuple[int, ...]]] = [(1, -1, (0,))]
    nodes: list[tuple[int, ...]] = []
    while len(nodes) < drafts:
        cost, depth, node = heappop(heap)
        nodes.append(node)
        heappush(heap, (cost + 1, depth - 1, (*node, 0)))
        if node[-1] + 1 < width:
            heappush(heap, (cost + 1, depth, (*node[:-1], node[-1] + 1)))
    return tuple(sorted(nodes, key=len))


@dataclass(frozen=True, eq=False)
class Graph:
    """The nodes of a graph as arrays: for each step and hypothesis, ranks among the positions still open then."""

    nodes: tuple[Node, ...]

    @cached_property
    def depths(self) -> tuple[int, ...]:
        return (0, *map(len, self.nodes))

    @cached_property
    def needs(self) -> tuple[int, ...]:
        return (0, *(max(rank for rank, _ in key(node)) + 1 for node in self.nodes))

    @cached_property
    def commits(self) -> np.ndarray:
        """[steps, most, G, 2] int64: the rank of a position and of its token; -1 for none."""
        most = max(len(step) for node in self.nodes for step in node)
        commits = np.full((self.depths[-1], len(self.nodes) + 1, most, 2), -1)
        for number, node in enumerate(self.nodes, 1):
            before: list[int] = []
            for at, step in enumerate(node):
                for column, (rank, token) in enumerate(step):
                    commits[at, number, column] = rank - sum(each < rank for each in before), token
                before += [rank for rank, _ in step]
        return commits


@cache
def graph_of(text: str) -> Graph:
    """The arrays of the graph with this text: see `read_nodes`."""
    return Graph(read_nodes(text))
