"""Checks of a drafter with a model, on the rows of fake_draft_model.py; those of a kind are in the contracts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from pardec.samplers.events import Finished
from pardec.samplers.speculative.contracts import Draft
from pardec.samplers.speculative.forward import VerifyForward
from tests.samplers.ar_toys import rows, run
from tests.samplers.fake_draft_model import NEW, RAGGED, greedy, named, near, target


def keeps_greedy(spec: str) -> tuple[Finished, Finished]:
    """Checks that all rows in one batch, and the first alone, equal plain greedy decoding; returns both runs."""
    with named(near=near()):
        done, alone = run(target(), spec, RAGGED, NEW), run(target(), spec, RAGGED[:1], NEW[0])
    assert rows(done) == greedy(), spec
    assert rows(alone) == greedy()[:1], spec
    return done, alone


def fed_slots_suffice(kind: Any, specs: Iterable[str]) -> None:
    """Checks that slots after those that a drafter has fed have no effect; `kind` is the class of its state."""
    draft = kind.draft

    def poisoned(self: Any, *asked: Any) -> Draft:
        for tensor in (*self.cache.k, *self.cache.v):
            for row, cached in enumerate(self.cached):
                tensor[row, cached:] = torch.nan
        return draft(self, *asked)

    for spec in specs:
        clean = run(target(), spec, RAGGED, NEW).trace.accepted
        with patch.object(kind, "draft", poisoned):
            assert run(target(), spec, RAGGED, NEW).trace.accepted == clean, spec


@contextmanager
def nothing_after_committed() -> Iterator[None]:
    """Within this, slots from the last committed token on hold NaN before each verify forward."""
    verify = VerifyForward.verify

    def poisoned(self: VerifyForward, draft: Draft) -> Any:
        for tensor in (*self.cache.k, *self.cache.v):
            for row, length in enumerate(self.text.length):
                tensor[row, length - 1 :] = torch.nan
        return verify(self, draft)

    with patch.object(VerifyForward, "verify", poisoned):
        yield


def committed_slots_suffice(spec: str) -> None:
    """Checks that slots from the last committed token on have no effect on the text, which is the greedy one."""
    clean = run(target(), spec, RAGGED, NEW)
    with nothing_after_committed():
        done = run(target(), spec, RAGGED, NEW)
    assert rows(done) == rows(clean) == greedy()
    assert done.trace.accepted == clean.trace.accepted
