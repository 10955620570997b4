"""`interpolate` alone, and with `contiguous` and `edit` as DMax, compared with a plain version on embeddings."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.plan import Hidden, Plan
from pardec.samplers.registry import resolve
from tests.reference import naive_revise as naive
from tests.samplers import toys
from tests.samplers.parity import recorded
from tests.samplers.revise_checks import LENGTHS, NEW, agree
from tests.samplers.toys import fill, prompts, toy

SPEC = "interpolate+contiguous:tau={}+edit:tau=0,post={},sure={}"


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize(("size", "tau", "sure"), [(4, 0.3, 0.9), (8, 0.2, 0.5), (6, 0.2, 0.99)])
@pytest.mark.covers(1)
def test_all_three_follow_the_paper(family: str, size: int, tau: float, sure: float) -> None:
    changed, post = 0, 3  # a random model rewrites all at every step: rounding has few steps to grow in
    for seed in range(2):
        model, given = toy(family, seed=seed, sharp=1.2), prompts(LENGTHS, seed=seed)
        got = fill(model, SPEC.format(tau, post, sure), given, NEW, block_length=size)
        for row, (prompt, new) in enumerate(zip(given, NEW, strict=True)):
            canvas = [*prompt, *[toys.MASK] * new]
            agree(got, row, *naive.dmax(model, canvas, len(prompt), size, toys.MASK, tau, sure, post))
        hard = fill(model, SPEC.format(tau, post, sure).replace("interpolate+", ""), given, NEW, block_length=size)
        changed += int((hard.tokens != got.tokens).sum()) + int(hard.nfe != got.nfe)
    assert changed, "soft inputs changed nothing: the test shows nothing"


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_all_three_follow_the_paper_on_recorded_checkpoints(name: str) -> None:
    model, given, new = recorded(name), prompts((5, 2, 9), vocab=100), (20, 16, 9)
    mask = model.decoding_config.mask_id
    got = fill(model, SPEC.format(0.1, 3, 0.9), given, new, block_length=8)
    for row, (prompt, count) in enumerate(zip(given, new, strict=True)):
        agree(got, row, *naive.dmax(model, [*prompt, *[mask] * count], len(prompt), 8, mask, 0.1, 0.9, 3))


def test_without_a_revise_stage_a_token_keeps_the_probability_that_it_was_committed_with() -> None:
    """One token per forward: inputs are mixtures with each token's probability at the step that committed it."""
    model, (prompt,) = toy("llada", sharp=1.2), prompts((4,))
    got = fill(model, "interpolate+sequential", [prompt], 6, block_length=6)
    embeddings, tokens, soft = model.decoder.embedding.double(), [*prompt, *[toys.MASK] * 6], {}
    for step in range(6):
        distribution = naive.predicted(model, tokens, soft, toys.MASK)
        at = max((p for p in range(4, 10) if p not in soft), key=lambda p: (distribution[p].max(), -p))
        tokens[at], share = int(distribution[at].argmax()), float(distribution[at].max())
        soft[at] = naive.mixture(embeddings[tokens[at]], embeddings[toys.MASK], share)
        assert got.trace.commit_step[0, at] == step
    assert got.tokens[0].tolist() == tokens


class Recorded(toys.Altered):
    """A stack that keeps each forward's tokens, soft inputs and logits, all of its one row."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner, lambda logits: logits)
        self.forwards: list[tuple[list[int], Tensor | None, Tensor]] = []

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        hidden = super().__call__(plan, cache)
        soft = None if plan.soft is None else plan.soft[0]
        self.forwards.append((plan.tokens[0].tolist(), soft, hidden.logits(plan.positions)[0]))
        return hidden


def test_a_drawn_token_that_is_not_the_likeliest_is_fed_unchanged() -> None:
    model = toy("llada", sharp=1.2)
    stack = Recorded(model.decoder)
    fill(replace(model, decoder=stack), "interpolate+random+fixed", [[1, 2]], 8, block_length=8, temperature=1.0)
    mixed: dict[int, bool] = {}
    for (tokens, _, logits), (after, soft, _) in pairwise(stack.forwards):
        likeliest = logits[:, : toys.MASK].argmax(1).tolist()
        new = {at: token == likeliest[at] for at, token in enumerate(after) if token != tokens[at]}
        mixed |= new
        assert soft is not None
        for at in range(2, 10):
            assert bool(soft[at].any()) == mixed.get(at, False), at
    assert set(mixed.values()) == {False, True}


def test_the_preset_has_all_three() -> None:
    sampler = resolve("preset:dmax")
    assert [type(stage).__name__ for stage in (*sampler.inputs, sampler.select, *sampler.revise)] == [
        "Interpolate",
        "Contiguous",
        "Edit",
    ]
