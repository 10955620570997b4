"""The report of /metrics, in Prometheus' text format."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..result import Result

if TYPE_CHECKING:
    from .worker import Worker

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """The counters of one server."""

    def __init__(self, worker: Worker) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter("pardec_requests", "Requests answered.", ["endpoint", "status"], registry=registry)
        self._prompt = Counter(
            "pardec_prompt_tokens", "Prompt tokens; a prompt with several answers counts once.", registry=registry
        )
        self._reused = Counter("pardec_reused_tokens", "Prompt tokens found in the prefix cache.", registry=registry)
        self._generated = Counter("pardec_generated_tokens", "Tokens generated in finished rows.", registry=registry)
        self._gone = Counter("pardec_disconnects", "Requests whose client went away.", registry=registry)
        self._seconds = Histogram(
            "pardec_request_seconds",
            "Seconds from a request to the end of its answer.",
            ["endpoint"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._first = Histogram(
            "pardec_first_token_seconds",
            "Seconds from a streamed request to its first text.",
            buckets=_SECONDS,
            registry=registry,
        )
        scheduler = worker.scheduler
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "pardec_rows_live": ("Rows that are being decoded.", lambda: scheduler.live),
            "pardec_rows_waiting": ("Rows that wait for a slot of a batch.", lambda: len(scheduler.waiting)),
            "pardec_forwards": ("Forwards of all batches since the start.", lambda: scheduler.forwards),
        }
        for name, (text, value) in gauges.items():
            Gauge(name, text, registry=registry).set_function(value)
        if (cache := worker.model.prefix_cache) is not None:
            Gauge("pardec_prefix_cache_bytes", "K/V kept for reuse.", registry=registry).set_function(
                lambda: cache.nbytes
            )

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """Counts a request that was answered."""
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def began(self, since: float) -> None:
        """Records the first text of a stream whose request arrived at `since` (`time.monotonic`)."""
        self._first.observe(time.monotonic() - since)

    def left(self) -> None:
        """Counts a client that disconnected."""
        self._gone.inc()

    def finished(self, results: list[Result], prompt_tokens: int) -> None:
        """Counts the finished rows of a request."""
        self._prompt.inc(prompt_tokens)
        self._reused.inc(sum(sum(result.reused) for result in results))
        self._generated.inc(sum(sum(result.generated) for result in results))

    def text(self) -> bytes:
        """The report as text."""
        return generate_latest(self.registry)
