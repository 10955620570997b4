"""`klass` by hand, compared with the naive rule; special cases and its state."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from pardec.samplers import registry
from pardec.samplers.masked.canvas import Canvas, Revision, Update
from pardec.samplers.masked.contracts import Evidence
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.masked.select.klass import Klass
from pardec.samplers.ops.distribution import DenseDistribution
from tests.reference import naive_selects as naive
from tests.samplers.eight_tokens import LAWS, MASK, steps_of
from tests.samplers.parity import FAMILIES, agree
from tests.samplers.spec_checks import commits_at
from tests.samplers.toys import fill, prompts, request, same, table, toy

# The laws stand still, so that from step `history` + 1 on every position with p > tau passes; before it, the best one.
STEPS = {
    "klass": [1, 4, 2, 6, 0, 3, 2, 5],
    "klass:history=1": [1, 3, 1, 5, 0, 2, 1, 4],
    "klass:history=7": [1, 5, 2, 7, 0, 4, 3, 6],
    "klass:tau=0.5": [1, 2, 2, 4, 0, 2, 2, 3],
    "klass:tau=0.5,steps=3": [0, 1, 0, 2, 0, 1, 1, 2],  # 3, 3, 2 tokens: .45 and .30 are never sure
    "klass:kl=0": [1, 5, 2, 7, 0, 4, 3, 6],
}


test_eight_tokens_by_hand = commits_at(STEPS)


def test_a_position_of_just_tau_is_not_confident() -> None:
    even = table(torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0]).expand(5, 5))
    for tau, gained in ((0.5, [1, 1, 1, 1]), (0.49, [1, 3])):
        assert fill(even, f"klass:tau={tau},history=1", [[0]], 4, block_length=4).trace.gained[0] == gained


def test_a_new_block_has_no_past() -> None:
    assert steps_of("klass:tau=0.5,history=1", block_length=4) == [0, 1, 1, 2, 3, 4, 4, 5]


def quotas(steps: int) -> naive.Klass:
    """The number of tokens per step if the whole canvas is one block."""
    return naive.Klass(0.9, 0.001, 2, lambda count: [len(range(step, count, steps)) for step in range(steps)])


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_naive_rule(family: str) -> None:
    length = {} if "sdar" in family else {"block_length": 8}
    for tau, kl, history in ((0.2, 0.3, 1), (0.5, 1.0, 1)) if family[0] == "d" else ((0.2, 0.3, 2), (0.1, 1.0, 3)):
        spec = f"klass:tau={tau},kl={kl},history={history}"
        agree(spec, partial(naive.Klass, tau, kl, history), family=family, **length)
    if "sdar" not in family:
        for steps in (2, 5, 30):
            agree(f"klass:tau=0.9,kl=0.001,steps={steps}", partial(quotas, steps), family=family, block_length=14)


def test_distributions_that_move_too_far_hold_a_position_back() -> None:
    """Position 0 alternates between two distributions, KL .51 nats; the others do not change."""
    row = torch.full((8,), MASK)
    canvas = Canvas((row,), (0,), mask_id=MASK, pad_id=4, block_length=8)
    asked, stage = request([row.tolist()], [0], block_length=8), Klass(tau=0.8, kl=0.05, history=1)
    state, other = stage.start(canvas), LAWS.clone()
    other[0, :4] = torch.tensor([0.05, 0.05, 0.85, 0.05])  # .95 falls to .85: KL .85 ln(.85/.95) + .15 ln 3
    far = 0.85 * torch.tensor(0.85 / 0.95).log() + 0.15 * torch.tensor(3.0).log()
    nothing = Update(torch.zeros_like(canvas.eligible), canvas.window, canvas.eligible.float())

    def step(
        distributions: torch.Tensor, revision: Revision | None = None, which: torch.Tensor | None = None
    ) -> list[bool]:
        evidence = Evidence(DenseDistribution(distributions.log()[None]), canvas.window, canvas.eligible, asked)
        proposal = registry.resolve("confidence+klass").propose.propose(evidence, canvas)
        chosen = stage.select(proposal, canvas, state)[0].tolist()
        canvas.commit(nothing if which is None else replace(nothing, which=which), revision=revision)
        return chosen

    sure = [place in (0, 2, 4, 5, 6) for place in range(8)]
    assert step(LAWS) == [False] * 8
    assert step(LAWS) == sure
    assert step(other) == [False, *sure[1:]]
    assert state.divergences[0, 0, 0].item() == pytest.approx(far.item(), abs=1e-5)
    assert step(other) == sure
    # A position that was committed and taken back has no past either.
    canvas.revises = True
    at = torch.zeros_like(canvas.eligible)
    at[0, 2] = True
    step(other, which=at)
    step(other, revision=Revision(reopen=at))
    assert step(other) == [place in (0, 4, 5, 6) for place in range(8)]
    assert step(other) == sure


def test_it_remembers_the_distributions_of_the_active_block_alone() -> None:
    model, given = toy(sharp=1.2), prompts((4, 7))
    spec = registry.resolve("klass")
    loop = MaskedLoop(model, spec, request([row + [model.decoding_config.mask_id] * 12 for row in given], [4, 7]))
    for _ in range(3):
        loop.step()
    state = loop.state(spec.select)
    assert state.log_probabilities.shape == (2, 4, 20)
    assert state.log_probabilities.dtype == torch.float32


def test_rows_that_leave_take_their_past_along() -> None:
    model, given, new = toy(sharp=1.2), prompts((4, 7, 2, 5)), (3, 12, 6, 9)
    spec = "klass:tau=0.2,kl=0.3,history=1,steps=7"
    whole = fill(model, spec, given, new, block_length=6)
    assert len(set(whole.nfe)) > 1
    for row, count in enumerate(new):
        assert same(fill(model, spec, [given[row]], count, block_length=6, seeds=[100 + row]), 0, whole, row)


def test_a_position_that_may_not_move_at_all_is_sequential() -> None:
    model, given = toy("dream", sharp=1.2), prompts((4, 7, 2))
    one, other = (fill(model, spec, given, (9, 5, 11)) for spec in ("sequential", "klass:kl=0"))
    assert all(same(one, row, other, row) for row in range(3))
