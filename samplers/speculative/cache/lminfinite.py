"""Attends to the first and the last tokens of a text, at distances that occurred in training.

LM-Infinite: Zero-Shot Extreme Length Generalization for Large Language Models, https://arxiv.org/abs/2308.16137

    a query at position p sees slot s  iff  s < sink  or  p - s < window
    sinks with p - s >= window are attended to as from position window, all other slots as from p

For texts longer than the model was trained for: no distance exceeds the window, and a row takes constant memory. The
request's length is then bounded by the request alone, not by the checkpoint's.

Deviates from the authors' code, which puts all sinks at position 0 then, so that their order is lost: they keep their
own positions 0 .. sink - 1. `reference` follows the code.
Exact: no; while a text has at most `window` tokens, it gives what no cache gives.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pardec.models.caches.kv_cache import KVCache
from pardec.models.model import LanguageModel

from ...registry import register
from ...traits import Reasons, Trait
from ..contracts import Cache
from ..sparse_kv import LETS_GO, READS_PART
from .streaming import window_cache


@register("lminfinite", checked="reference:reference.naive_window.naive")
class LMInfinite(Cache):
    provides = frozenset({Trait.CHANGES_TARGET, Trait.MOVES_KV, Trait.LONGER_TEXTS})
    requires: ClassVar[Reasons] = {Trait.PLAIN_DECODER: READS_PART}
    conflicts: ClassVar[Reasons] = {Trait.FEEDS_TEXT_AGAIN: LETS_GO}

    sink: Annotated[int, "first tokens that are always seen"] = 10
    window: Annotated[int, "last tokens that are seen, and the greatest distance: at most the trained length"] = 2048
    reference: Annotated[bool, "put sinks from before the window at position 0, as the authors' code does"] = False

    def __post_init__(self) -> None:
        self.require("sink", "window", least=1)

    def new_cache(
        self, model: LanguageModel, rows: int, capacity: int, *, scratch: int = 0, shared: int = 0
    ) -> KVCache:
        return window_cache(
            model,
            rows,
            capacity + scratch,
            nodes=scratch + 1,
            sink=self.sink,
            window=self.window,
            far="zero" if self.reference else "offsets",
        )
