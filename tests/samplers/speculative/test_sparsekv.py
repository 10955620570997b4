"""`sparsekv`: the target itself drafts, over a part of its K/V."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pardec.models.caches.compact_cache import CompactCache
from pardec.models.errors import SpecError
from pardec.models.load import load
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from pardec.samplers.events import Finished
from pardec.tasks import task
from tests.samplers.ar_toys import prompts, rows, run, toy_ar
from tests.samplers.joint_distributions import SMALL, WORLDS, drafting, measure
from tests.samplers.reading_drafts import Ratios

VOCAB = 8
GIVEN, NEW = prompts((3, 6, 1, 9, 40), vocab=VOCAB), (20, 12, 30, 25, 20)


def target(dtype: torch.dtype = torch.float32) -> LanguageModel:
    return toy_ar(3, VOCAB, 1.5, layers=3, dtype=dtype)


@pytest.mark.parametrize("read", ["retrieval:budget=66,chunk=11,refresh=1", "streaming:sink=4,window=60"])
def test_with_room_for_the_whole_text_every_draft_is_accepted(read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its distributions are the target's."""
    ratios = Ratios(monkeypatch)
    with drafting(VOCAB):
        done = run(target(torch.float64), f'sparsekv:k=3,read="{read}"+speculative', GIVEN, NEW, temperature=1.0)
    assert done.trace.accepted == done.trace.drafted
    assert ratios.gaps
    assert max(ratios.gaps) < 1e-6  # probabilities are float32


def test_garbage_in_the_compact_cache_costs_acceptance_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = CompactCache.fill
    rng = torch.Generator().manual_seed(0)

    def spoiled(compact: Any, *rest: Any) -> None:
        fill(compact, *rest)
        for store in (*compact.k, *compact.v):
            store.normal_(std=3, generator=rng)

    monkeypatch.setattr(CompactCache, "fill", spoiled)
    with drafting(VOCAB):
        done = run(target(), SMALL["sparsekv"], GIVEN, NEW)
    assert rows(done) == rows(run(target(), "sequential", GIVEN, NEW))
    for reading in measure(f"{SMALL['sparsekv']}+speculative", WORLDS["5 tokens, length 4"], 600):
        assert reading.z < 4


def accepted(done: Finished) -> float:
    """The share of drafted tokens that is accepted."""
    taken, all_of = (sum(map(sum, each)) for each in (done.trace.accepted, done.trace.drafted))
    return taken / all_of


@pytest.mark.seeds("arXiv:2404.11912")
def test_retrieval_drafts_better_than_a_window_of_its_size() -> None:
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


@pytest.mark.parametrize("read", ["lminfinite", "lookup"])
def test_what_is_no_reading_is_refused(read: str) -> None:
    with pytest.raises(SpecError, match="one sparse cache"):
        registry.resolve(f'sparsekv:read="{read}"', "ar")
