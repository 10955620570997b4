"""`wedlm`: commits positions of low entropy, plus a penalty that grows with the distance to the first open one."""

from __future__ import annotations

import torch

from tests.samplers.eight_tokens import MASK, steps_of
from tests.samplers.spec_checks import commits_at
from tests.samplers.toys import fill, prompts, request, run, same, table, toy

# Entropies .254 1.113 .401 1.380 .067 .588 .432 1.292 nats
STEPS = {
    # From 0 on: .254 and .067 + .08; then of .421 .668 .532 the least, and so on; at last 1.292 + .08 and 1.380.
    "wedlm": [0, 4, 1, 6, 0, 3, 2, 5],
    "wedlm:tau=0.42,distance=0": [0, 3, 0, 5, 0, 2, 1, 4],
    "wedlm:tau=0.42": [0, 4, 1, 6, 0, 3, 2, 5],  # .401 + .04 at the first step
    "wedlm:tau=none,distance=0": [1, 5, 2, 7, 0, 4, 3, 6],
    "wedlm:tau=none,distance=1": [0, 1, 2, 4, 3, 5, 6, 7],  # .067 + 1 comes before 1.380
    "wedlm:tau=9": [0] * 8,
}


test_eight_tokens_by_hand = commits_at(STEPS)


def test_a_position_of_just_tau_waits() -> None:
    """Without entropy the positions have 0, .25 and .5."""
    sure = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]).expand(3, 5)
    asked = request([[4] * 3], [0], block_length=3)
    for tau, steps in ((0.25, [0, 1, 2]), (0.26, [0, 0, 1])):
        got = run(table(sure), f"wedlm:tau={tau},distance=0.25", asked)
        assert got.trace.commit_step[0, :3].tolist() == steps


def test_the_distance_is_from_the_first_open_position_not_from_the_block() -> None:
    """With two given tokens .401 + 0 is low enough, and .432 + .08 is not."""
    row = [0, 0, *[MASK] * 6]
    assert steps_of("wedlm:tau=0.42,distance=0.02", row=row)[:3] == [-1, -1, 0]
    assert steps_of("wedlm:tau=0.42,distance=0.02", row=row)[6] > 0


def test_the_entropy_is_the_models_own_whatever_is_proposed() -> None:
    assert steps_of("confidence+wedlm:tau=none,distance=0") == steps_of("wedlm:tau=none,distance=0")
    model, given = toy("wedlm", sharp=1.2), prompts((4, 7))
    for temperature in (0.0, 0.8):
        one, other = (
            fill(model, f"{score}wedlm@window", given, 8, temperature=temperature)
            for score in ("random+", "entropy:of=filtered+")
        )
        assert all(same(one, row, other, row) for row in range(2))
