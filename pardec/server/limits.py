"""The limits of one client, and of all clients together."""

from __future__ import annotations

from dataclasses import dataclass

from pardec.models.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a server; a request beyond one is refused with the status given here.

    Attributes:
        batch_size: rows decoded at once.
        queue: rows that wait for a slot; 503.
        rows: of one request, prompts times `n`; 400.
        length: tokens of a row, prompt and answer; None is the model's own limit; 400.
        body: bytes of a request; 413.
        reading: seconds of a processor that reading a request may take (tokens, the automaton of a schema); 400.
        receiving: seconds in which a request has to arrive; 408.
        seconds: from the request to the end of the answer; 408, or an error event in a stream.
        grace: seconds that requests under way have to finish when the server stops.
    """

    batch_size: int = 16
    queue: int = 256
    rows: int = 64
    length: int | None = None
    body: int = 4 * 2**20
    reading: float = 4.0
    receiving: float = 30.0
    seconds: float = 600.0
    grace: float = 30.0

    def __post_init__(self) -> None:
        for name in ("batch_size", "rows", "length", "body"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SpecError(f"{name} must be a whole number of at least 1, got {value!r}", f"leave {name} out")
        for name in ("queue", "reading", "receiving", "seconds", "grace"):
            if not getattr(self, name) >= 0:
                raise SpecError(f"{name} must be at least 0, got {getattr(self, name)!r}", f"leave {name} out")
