"""`triforce`: a small model drafts for the target over a part of its K/V, which drafts for the whole target."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.models.plan import Plan, Visible
from pardec.samplers import registry
from pardec.samplers.speculative.contracts import DecodeContext, Draft, Uniforms
from pardec.samplers.speculative.draft.triforce import TriForce
from tests.samplers.ar_toys import g_test, logits, run, toy_ar
from tests.samplers.fake_draft_model import RAGGED, named, target
from tests.samplers.joint_distributions import SMALL, WORLDS, drafting, measure
from tests.samplers.reading_drafts import accepts_all_with_room, survives_garbage

test_with_room_for_the_whole_text_every_draft_is_accepted = accepts_all_with_room(
    'triforce:name=toy,k=2,gamma=3,read="{read}"+speculative'
)


test_garbage_in_the_compact_cache_costs_acceptance_alone = survives_garbage("triforce")


def test_what_leaves_the_inner_loop_has_the_middle_models_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two tokens of the first draft, over all pairs, against masked forwards of the target; V is 4."""
    model, text, count = toy_ar(3, 4), [1, 3, 0, 2, 1, 1], 3000
    drafts: list[Draft] = []
    propose = TriForce.propose

    def kept(drafter: Any, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: Any) -> Draft:
        drafts.append(propose(drafter, context, room, uniforms, state))
        return drafts[-1]

    monkeypatch.setattr(TriForce, "propose", kept)
    spec = 'triforce:name=toy,read="streaming:sink=1,window=2",k=2,gamma=2'
    with drafting(4):
        done = run(model, spec, [text] * count, 4, temperature=1.0)
    first = done.tokens[:, len(text)]  # what the prompt's forward gave, after which the draft stands
    draft = drafts[0]
    for token in range(4):
        some = draft.tokens[torch.from_numpy(np.asarray(first) == token)]
        ends = list(product(range(4), repeat=2))
        whole = torch.tensor([[*text, token, *end] for end in ends])
        order = torch.arange(whole.shape[1])
        seen = (order <= order[:, None]) & ((order < 1) | (order >= len(text) - 2) | (order[:, None] < len(text)))
        made = model.forward(Plan.full(whole, Visible.mask(seen.expand(len(whole), -1, -1)))).logits()
        probs = made[:, len(text) : -1].double().softmax(-1).gather(-1, torch.tensor(ends)[..., None])[..., 0].prod(1)
        counts = np.zeros((4, 4), dtype=np.int64)
        np.add.at(counts, tuple(some[:, 1:3].numpy().T), 1)
        assert g_test(counts, probs.numpy().reshape(4, 4)) < 4
    plain = logits(model, [text])[0, -1].softmax(-1).numpy()
    assert np.abs(np.bincount(first, minlength=4) / count - plain).max() < 0.04


def test_both_levels_are_exact() -> None:
    for reading in measure(f"{SMALL['triforce']}+speculative", WORLDS["5 tokens, length 4"], 1000, seed=3):
        assert reading.z < 4


def test_a_row_that_has_gamma_tokens_waits_for_the_others() -> None:
    """Then the target verifies: at most gamma and k more, though other rows take more inner rounds."""
    with drafting(5):
        spec = 'triforce:name=draft,read="streaming:sink=1,window=3",k=2,gamma=4'
        done = run(toy_ar(3, 5), spec, [[at % 5, 1, at // 5] for at in range(20)], 13, temperature=1.0)
    sizes = {count for row in done.trace.drafted for count in row[1:-1]}
    assert {4, 5} <= sizes
    assert max(sizes) <= 4 + 2


def test_a_small_model_that_is_always_right_drafts_gamma_tokens_and_never_more_than_are_left() -> None:
    """Inner rounds of 2 tokens and one more: two make 6. Then 4 are left, the last of them the target's own."""
    with named(same=target()):
        done = run(target(), 'triforce:name=same,k=2,gamma=6,read="retrieval:budget=64"', RAGGED, 1 + 7 + 4)
    assert list(done.trace.drafted) == [(0, 6, 3)] * len(RAGGED)
    assert list(done.trace.gained) == [[1, 7, 4]] * len(RAGGED)


def test_it_has_to_be_named() -> None:
    with pytest.raises(SpecError, match="name is missing"):
        registry.resolve("triforce", "ar")
