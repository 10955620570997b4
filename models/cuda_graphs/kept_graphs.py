"""The graphs that are kept, by shape: one is made when a shape comes again, and the least recently used ones go."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from .capture import CaptureError

Key = tuple[Hashable, ...]
Graph = TypeVar("Graph")

_SHAPES = 1024  # limit of remembered shapes that were seen once


class KeptGraphs(Generic[Graph]):
    """Graphs by key.

    Attributes:
        counts: calls by how they ran: "recorded" (captured, then replayed), "replayed", or without a graph, by the
            reason.
    """

    def __init__(self, what: str = "forwards") -> None:
        self.what = what
        self.counts: Counter[str] = Counter()
        self.graphs: OrderedDict[Key, Graph] = OrderedDict()
        self._refused: dict[Key, str] = {}
        self._shapes: set[Key] = set()

    def get(
        self, key: Key, unsuited: Callable[[], str | None], capture: Callable[[], Graph], *, most: int
    ) -> Graph | None:
        """The graph of this key, of which `most` are kept; None where the call has to run without one.

        `unsuited` says why no graph is made of a call, if so; `capture` makes one, or raises CaptureError.
        """
        graph, how = self._find(key, unsuited, capture)
        while len(self.graphs) > most:
            self.graphs.popitem(last=False)
        self.counts[how] += 1
        return graph

    def describe(self) -> str:
        """How the calls so far have run, in one line."""
        counts = ", ".join(f"{count} {how}" for how, count in self.counts.most_common())
        return f"{self.what}: {counts or 'none'}; {len(self.graphs)} shapes kept"

    def drop(self, stale: Callable[[Key], bool]) -> None:
        """Drops the graphs of these keys."""
        for key in [key for key in self.graphs if stale(key)]:
            del self.graphs[key]

    def _find(
        self, key: Key, unsuited: Callable[[], str | None], capture: Callable[[], Graph]
    ) -> tuple[Graph | None, str]:
        """The graph of this key and how it was found; None and the reason why there is none."""
        if (reason := unsuited() or self._refused.get(key)) is not None:
            return None, reason
        if key in self.graphs:
            self.graphs.move_to_end(key)
            return self.graphs[key], "replayed"
        if key not in self._shapes:
            if len(self._shapes) >= _SHAPES:
                self._shapes.clear()
                self._refused.clear()
            self._shapes.add(key)
            return None, "the first of its shape"
        try:
            self.graphs[key] = capture()
        except CaptureError as error:
            self._refused[key] = f"refused: {error}"
            return None, self._refused[key]
        return self.graphs[key], "recorded"
