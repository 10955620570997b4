"""`edit`: overwrites committed tokens by more confident ones, during a block and after it."""

from __future__ import annotations

import pytest
import torch

from tests.reference import naive_revise as naive
from tests.samplers.revise_checks import as_the_select_alone, compare
from tests.samplers.toys import BLOCK, request, run, table


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("post", [0, 1, 16])
@pytest.mark.covers(1)
def test_it_is_the_naive_rule(family: str, post: int) -> None:
    changed = 0
    for seed in range(2):
        spec = f"edit:tau=0.45,post={post}+threshold:tau=0.4"
        _, differs = compare(spec, naive.edit, family, BLOCK, seed, tau=0.4, sure=0.45, post=post)
        changed += differs
    assert changed, "nothing was ever edited: the test shows nothing"


test_nothing_surer_is_the_select_alone = as_the_select_alone(("threshold:tau=0.4+edit:tau=1", "threshold:tau=0.4"))


def test_a_block_that_took_as_many_steps_gets_no_more_forwards() -> None:
    """Four tokens of .95 fill their block in one step; a further forward, which changes nothing, needs a limit of 2."""
    distributions = torch.zeros(4, 7)
    distributions[:, 0], distributions[:, 1] = 0.95, 0.05
    asked = request([[6] * 4], [0], block_length=4)
    for steps, forwards in ((1, 1), (2, 2)):
        assert run(table(distributions), f"contiguous+edit:tau=0,steps={steps}", asked).nfe == (forwards,)


def test_filtered_edits_go_by_the_probability_after_filters() -> None:
    """Of 0.5, 0.3 and 0.2 the best two are kept: 0.625 and 0.375. So the second is edited, and the first never is."""
    distributions = torch.zeros(12, 7)
    distributions[:, :3] = torch.tensor([0.5, 0.3, 0.2])
    asked = request([[6] * 12], [0], block_length=12, temperature=1.0, top_k=2)
    plain, above, below, raw = (
        run(table(distributions), f"threshold:tau=0{rest}", asked)
        for rest in (
            "",
            *(f"+edit:of={of},tau={tau}" for of, tau in (("filtered", 0.63), ("filtered", 0.6), ("raw", 0.6))),
        )
    )
    assert set(plain.tokens[0, :12].tolist()) == {0, 1}
    assert (above.tokens == plain.tokens).all()
    assert (raw.tokens == plain.tokens).all()
    assert (below.tokens[0, :12] < plain.tokens[0, :12]).any()
    assert (below.tokens[0, :12] <= plain.tokens[0, :12]).all()


def test_a_drawn_token_is_edited_later_than_its_step_and_for_one_surer_than_tau() -> None:
    """Of two equally likely tokens the lower id is the likeliest, at exactly 0.5."""
    distributions = torch.zeros(1, 7)
    distributions[:, :2] = 0.5
    drawn = {
        spec: run(table(distributions), spec, request([[6]] * 16, [0] * 16, block_length=1, temperature=1.0)).tokens
        for spec in ("fixed", "fixed+edit:tau=0.4,post=0", "fixed+edit:tau=0.5,post=1", "fixed+edit:tau=0.4,post=1")
    }
    plain, at_once, equal, surer = (tokens[:, 0].tolist() for tokens in drawn.values())
    assert plain == at_once == equal
    assert 0 < sum(plain) < 16
    assert surer == [0] * 16


def test_what_is_sure_everywhere_ends_at_once() -> None:
    distributions = torch.zeros(4, 7)
    distributions[:, 0], distributions[:, 1] = 0.95, 0.05
    asked = request([[6] * 4], [0], block_length=4)
    assert run(table(distributions), "contiguous+edit:tau=0", asked).nfe == (2,)  # one more, which changes nothing
    assert run(table(distributions), "contiguous+edit:tau=0,sure=0.9", asked).nfe == (1,)
    assert run(table(distributions), "contiguous+edit:tau=0,sure=0.96", asked).nfe == (2,)


def test_a_block_is_sure_by_the_tokens_that_stand_in_it() -> None:
    """Tokens are drawn from (.6, .4): a block of one ends with its first forward where that drew the likelier one."""
    distributions = torch.zeros(1, 7)
    distributions[:, 0], distributions[:, 1] = 0.6, 0.4
    asked = request([[6]] * 16, [0] * 16, block_length=1, temperature=1.0)
    for of in ("raw", "filtered"):
        got = run(table(distributions), f"fixed+edit:tau=0.9,post=1,of={of},sure=0.5", asked)
        assert got.nfe == tuple(1 + int(token) for token in got.tokens[:, 0])
        assert set(got.nfe) == {1, 2}


def test_all_tokens_of_the_block_must_be_sure() -> None:
    """`contiguous` commits the first position alone: it is unsure, and the step that completes the block is sure."""
    distributions = torch.zeros(2, 7)
    distributions[:, 0], distributions[:, 1] = torch.tensor([0.6, 0.95]), torch.tensor([0.4, 0.05])
    asked = request([[6] * 2], [0], block_length=2)
    assert run(table(distributions), "contiguous:tau=0.9+edit:tau=0.97,sure=0.9", asked).nfe == (3,)
    assert run(table(distributions), "contiguous:tau=0.9+edit:tau=0.97,sure=0.59", asked).nfe == (2,)


def test_a_token_as_likely_as_sure_is_sure() -> None:
    distributions = torch.zeros(1, 7)
    distributions[:, :2] = 0.5
    asked = request([[6]], [0], block_length=1)
    assert run(table(distributions), "fixed+edit:tau=0.9,sure=0.5", asked).nfe == (1,)
    assert run(table(distributions), "fixed+edit:tau=0.9,sure=0.51", asked).nfe == (2,)


def test_a_token_that_the_last_step_edits_counts_as_it_will_stand() -> None:
    """Rows whose first token was drawn as the unlikely one have it edited when the second completes the block."""
    distributions = torch.zeros(2, 7)
    distributions[:, 0], distributions[:, 1] = 0.8, 0.2
    asked = request([[6] * 2] * 32, [0] * 32, block_length=2, temperature=1.0)
    got = run(table(distributions), "leftmost+fixed+edit:tau=0.7,post=1,sure=0.7", asked)
    plain = run(table(distributions), "leftmost+fixed", asked)
    edited = got.tokens[:, 0] != plain.tokens[:, 0]
    assert edited.any()
    sure = plain.tokens[:, 1] == 0
    assert got.nfe == tuple(2 + int(not each) for each in sure)
    assert (edited & sure).any()


def test_the_limit_on_steps_counts_those_of_each_block() -> None:
    distributions = torch.zeros(4, 7)
    distributions[:, 0], distributions[:, 1] = 0.95, 0.05
    asked = request([[6] * 4], [0], block_length=2)
    assert run(table(distributions), "contiguous+edit:tau=0,steps=2", asked).nfe == (4,)  # each filled in one step
