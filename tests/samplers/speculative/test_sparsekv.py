"""`sparsekv`: the target itself drafts, with a part of its K/V."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.models.load import load
from pardec.samplers import registry
from pardec.samplers.events import Finished
from pardec.samplers.speculative.cache import retrieval as reading
from pardec.samplers.speculative.sparse_kv import Choice, RefreshState, SparseDraftState
from pardec.tasks import task
from tests.samplers.ar_toys import run
from tests.samplers.reading_drafts import accepts_all_with_room, survives_garbage
from tests.samplers.speculative import test_retrieval as retrieval
from tests.samplers.speculative import test_triforce as triforce

test_with_room_for_the_whole_text_every_draft_is_accepted = accepts_all_with_room(
    'sparsekv:k=3,read="{read}"+speculative'
)


test_garbage_in_the_compact_cache_costs_acceptance_alone = survives_garbage("sparsekv")


def accepted(done: Finished) -> float:
    """The share of drafted tokens that is accepted."""
    taken, all_of = (sum(map(sum, each)) for each in (done.trace.accepted, done.trace.drafted))
    return taken / all_of


def each_row_is_filled_after_its_own_rounds_and_the_others_are_continued() -> None:
    """With refresh=3 and 3 and 1 rounds since then row 0 is due, two rounds later row 1, and then row 0."""
    state, filled = RefreshState(np.array([3, 1]), np.array([4, 7])), list[list[int]]()
    cache: Any = SimpleNamespace(fill=lambda source, rows, *_: filled.append(rows.tolist()))
    context: Any = SimpleNamespace(text=SimpleNamespace(length=np.array([6, 9])), queries=tuple)
    attention, source = reading.Retrieval(refresh=3), Any
    with patch.object(reading.Retrieval, "choose", lambda self, slots: Choice([], slots.length)):
        due = [attention.refresh_rows(cache, source, context, state).tolist() for _ in range(4)]
    assert due == [[True, False], [False, False], [False, True], [True, False]]
    assert filled == [[0], [1], [0]]
    drafter: Any = SimpleNamespace(context=context, refresh_state=state, cache=SimpleNamespace())
    drafter.attention = SimpleNamespace(refresh_rows=lambda *_: np.array([True, False]))
    drafter.cache.copy = lambda source, start, stop: copied.append((start.tolist(), stop.tolist()))
    context.cache, copied = None, list[tuple[list[int], list[int]]]()
    SparseDraftState.follow(drafter)
    assert copied == [([5, 7], [5, 8])], "of a row that was filled nothing is missing"


@pytest.mark.seeds("arXiv:2404.11912")
def test_retrieval_drafts_better_than_a_window_of_its_size() -> None:
    retrieval.test_retrieval_chooses_the_chunks_of_the_plain_version()
    retrieval.test_chunks_are_chosen_after_the_prompt_and_again_after_every_refresh_rounds()
    triforce.test_both_levels_are_exact()
    triforce.test_a_row_that_has_gamma_tokens_waits_for_the_others()
    triforce.test_a_small_model_that_is_always_right_drafts_gamma_tokens_and_never_more_than_are_left()
    each_row_is_filled_after_its_own_rounds_and_the_others_are_continued()
    with pytest.MonkeyPatch.context() as patches:
        triforce.test_with_room_for_the_whole_text_every_draft_is_accepted("streaming:sink=4,window=60", patches)
    model = load("tiny-llama", device="cpu")
    problems = task("records").problems("heldout", 60)
    assert model.tokenizer is not None
    texts = []
    for at in range(4):  # the fact first, and other people's after it
        others = [other.prompt.split(":", 1)[1] for other in problems[20 + 10 * at : 30 + 10 * at]]
        texts.append(model.tokenizer(problems[at].prompt + "".join(others))["input_ids"])
    budgets = {
        read: f'sparsekv:read="{read}",k=4' for read in ("retrieval:budget=64,chunk=4", "streaming:sink=4,window=60")
    }
    assert min(map(len, texts)) > 64
    shares = [accepted(run(model, spec, texts, 16, temperature=1.0)) for spec in budgets.values()]
    assert shares[0] > shares[1]
    scores, random = reading.chunk_scores, torch.Generator().manual_seed(0)

    def other(order: Callable[[Tensor], Tensor]) -> float:
        """The share with chunks by another score; those after a text's end have -1."""

        def changed(*given: Tensor) -> Tensor:
            own = scores(*given)
            return torch.where(own < 0, own, order(own))

        with patch.object(reading, "chunk_scores", changed):
            return accepted(run(model, next(iter(budgets.values())), texts, 16, temperature=1.0))

    assert other(lambda own: own) == shares[0]
    assert shares[0] > other(lambda own: 1 - own)
    assert shares[0] > other(lambda own: torch.rand(own.shape, generator=random))


@pytest.mark.parametrize("read", ["lminfinite", "lookup"])
def test_what_is_no_reading_is_refused(read: str) -> None:
    with pytest.raises(SpecError, match="one sparse cache"):
        registry.resolve(f'sparsekv:read="{read}"', "ar")
