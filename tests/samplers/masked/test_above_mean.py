"""`above_mean`: commits every position whose score exceeds the mean of the committed scores; `saber` uses it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pardec.samplers.masked.select.above_mean import AboveMean, Scores
from tests.reference import naive_revise as naive
from tests.samplers import eight_tokens
from tests.samplers.eight_tokens import LAWS, steps_of
from tests.samplers.revise_checks import LENGTHS, NEW, agree
from tests.samplers.toys import MASK, fill, prompts, request, run, table, toy


def test_eight_tokens_by_hand() -> None:
    """.95 .60 .91 .30 .99 .85 .901 .45: the best two; mean .97, none above: two more; then mean .938; then ...

    Two a step in the order of the scores, since every mean is above what is left.
    """
    assert steps_of("above_mean") == [0, 2, 1, 3, 0, 2, 1, 3]
    assert steps_of("above_mean:least=3") == [0, 1, 0, 2, 0, 1, 1, 2]
    # .95 .91 and then .60 .30: mean .69; of the second block .99 .85 .901 are above it; then .45 alone.
    assert steps_of("above_mean", block_length=4) == [0, 1, 0, 1, 2, 2, 2, 3]
    # Equal scores are not above their mean: the two of the lowest position go.
    got = run(table(LAWS[:1].repeat(8, 1)), "above_mean", request([[eight_tokens.MASK] * 8], [0], block_length=8))
    assert got.trace.commit_step[0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_row_without_a_commit_has_no_mean_beside_one_that_has() -> None:
    """All three are above .5, the first row's mean so far; the second row commits its best."""
    score = torch.tensor([[0.9, 0.8, 0.7]]).expand(2, 3)
    proposal: Any = SimpleNamespace(score=score, eligible=torch.ones(2, 3, dtype=torch.bool))
    canvas: Any = SimpleNamespace(block_started=np.array([True, True]))
    total = torch.tensor([[0.5], [0.0]], dtype=torch.float64)
    state = Scores(total, torch.tensor([[1], [0]]), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool))
    assert AboveMean(least=1).select(proposal, canvas, state).sum(1).tolist() == [3, 1]


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize(("least", "size"), [(1, 4), (2, 8)])
def test_it_is_the_naive_rule(family: str, least: int, size: int) -> None:
    for seed in range(2):
        model, given = toy(family, seed=seed, sharp=1.2), prompts(LENGTHS, seed=seed)
        got = fill(model, f"above_mean:least={least}", given, NEW, block_length=size)
        for row, (prompt, new) in enumerate(zip(given, NEW, strict=True)):
            canvas = [*prompt, *[MASK] * new]
            agree(got, row, *naive.saber(model, canvas, len(prompt), size, MASK, least, False, back=False))
