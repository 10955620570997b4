"""`saber`: which tokens it masks again, by hand and by the paper's rule."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers.masked.revise.saber import Before, Saber
from pardec.samplers.registry import resolve
from tests.reference import naive_revise as naive
from tests.samplers import toys
from tests.samplers.eight_tokens import LAWS, MASK
from tests.samplers.heldout_answers import answered
from tests.samplers.masked import test_above_mean
from tests.samplers.parity import recorded
from tests.samplers.revise_checks import LENGTHS, NEW, agree
from tests.samplers.toys import fill, prompts, request, run, table, toy


def what_is_taken_back_by_hand() -> None:
    """Constant probabilities: the less confident of a block's first two tokens is masked, then one that rose by 0."""
    got = run(table(LAWS), "saber", request([[MASK] * 8], [0], block_length=8))
    # Step 0 commits 4 and 0 and takes 0, of the smaller rise from nothing, back. From then on every rise is 0, and the
    # lowest position of all that are committed goes: 0 and 2 are committed, and 0 is taken back; and so on.
    steps, tokens = got.trace.commit_step[0].tolist(), got.tokens[0].tolist()
    assert steps[4] == 0
    assert got.nfe == (max(steps) + 1,) == (7,)
    assert tokens == LAWS.argmax(-1).tolist()
    # Of 16 positions the first step commits c and takes back one for every 8 begun, at least `least` // 2, those of the
    # lowest probability; the second completes the block, and takes nothing back.
    for c, least, back in ((9, 2, 2), (12, 2, 2), (12, 7, 3), (16, 2, 0)):
        whole = table(LAWS.repeat(2, 1))
        got = run(whole, f"quota:tau=none,least={c}+saber:least={least}", request([[MASK] * 16], [0], block_length=16))
        p = LAWS.amax(-1).repeat(2).tolist()
        best = sorted(sorted(range(16), key=lambda at: -p[at])[:c])
        first = sorted(sorted(best, key=lambda at: p[at])[back:])  # of equal ones the lowest position is taken back
        assert [at for at, step in enumerate(got.trace.commit_step[0].tolist()) if step == 0] == first


def a_row_compares_with_nothing_only_where_it_enters_a_block_itself() -> None:
    """Both have .8 committed and commit .5 and .3; of the first .3 rose least, of the second .8 fell from .9."""
    now, before = (torch.tensor([each, each]) for each in ([0.8, 0.5, 0.3], [0.9, 0.2, 0.1]))
    first = torch.tensor([[True, False, False]] * 2)
    canvas: Any = SimpleNamespace(
        committed=first,
        tokens=torch.zeros(2, 3, dtype=torch.int64),
        window=torch.arange(3).expand(2, 3),
        block_started=np.array([True, False]),
        block_remaining=np.array([4, 4]),
    )
    evidence = SimpleNamespace(distribution=SimpleNamespace(probability=lambda tokens: now))
    proposal: Any = SimpleNamespace(tokens=canvas.tokens, evidence=evidence)
    taken = Saber().revise(~first, proposal, canvas, Before(before))
    assert taken.reopen is not None
    assert taken.reopen.tolist() == [[False, False, True], [True, False, False]]


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize(("least", "size"), [(2, 4), (2, 8), (3, 16), (1, 8)])
@pytest.mark.covers(2)
def test_it_follows_its_paper(family: str, least: int, size: int, reference: bool) -> None:
    reopened = 0
    for seed in range(3):
        model, given = toy(family, seed=seed, sharp=1.2), prompts(LENGTHS, seed=seed)
        spec = f"saber:least={least},reference={str(reference).lower()}"
        got = fill(model, spec, given, NEW, block_length=size)
        for row, (prompt, new) in enumerate(zip(given, NEW, strict=True)):
            canvas = [*prompt, *[toys.MASK] * new]
            agree(got, row, *naive.saber(model, canvas, len(prompt), size, toys.MASK, least, reference))
        plain = fill(model, f"above_mean:least={least}", given, NEW, block_length=size)
        reopened += sum(got.nfe) - sum(plain.nfe)
    assert reopened > 0 or least == 1, "nothing was ever taken back: the test shows nothing"


@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.parametrize("reference", [False, True])
def test_it_follows_its_paper_on_recorded_checkpoints(name: str, reference: bool) -> None:
    model, given = recorded(name), prompts((5, 2, 9), vocab=100)
    mask = model.decoding_config.mask_id
    got = fill(model, f"saber:reference={str(reference).lower()}", given, (20, 16, 9), block_length=16)
    for row, (prompt, new) in enumerate(zip(given, (20, 16, 9), strict=True)):
        agree(got, row, *naive.saber(model, [*prompt, *[mask] * new], len(prompt), 16, mask, 2, reference))


def test_it_is_resolved_with_its_select_and_refuses_what_cannot_be() -> None:
    assert str(resolve("saber:least=4").spec) == (
        "confidence:of=raw+above_mean:least=4+saber:least=4,reference=false@none"
    )
    with pytest.raises(SpecError, match="least must be at least 1, got 0"):
        resolve("saber:least=0")


@pytest.mark.seeds("arXiv:2510.18165")
def test_steps_commit_more_than_one_token_and_answers_stay_right() -> None:
    """Probabilities near 1 leave little above their mean, so such a model gains few forwards."""
    what_is_taken_back_by_hand()
    a_row_compares_with_nothing_only_where_it_enters_a_block_itself()
    test_above_mean.test_eight_tokens_by_hand()
    test_above_mean.test_a_row_without_a_commit_has_no_mean_beside_one_that_has()
    for family, least, size in (("llada", 2, 4), ("dream", 2, 4), ("dream", 3, 16), ("llada", 1, 8)):
        test_it_follows_its_paper(family, least, size, False)
    for task in ("arithmetic", "records"):
        right, result = answered("tiny-dream", task, "saber", 6)
        assert right >= 5
        assert all(nfe < 32 for nfe in result.nfe)
