"""The assertions of diffusers' tests of BlockRefinementScheduler, on PardecScheduler with its rule and with specs.

Written anew. With diffusers' rule (no sampler) all of them hold; the methods that are inherited unchanged are only
listed. With a spec the private ones have no meaning: pardec's loop commits and draws in their place, and a masked model
is what it decodes, so that `mask_token_id=None`, the uniform corruption mode, is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import BlockRefinementScheduler
from torch import Tensor

from pardec.interop.diffusers import PardecScheduler, policy
from pardec.models.errors import SpecError

MASK, VOCAB = 31, 32
RULES = [None, "threshold:tau=0.95", "threshold:tau=0.95+edit:tau=0.5"]


def scheduler(sampler: str | None = None, **config: Any) -> PardecScheduler:
    made = {"block_length": 32, "num_inference_steps": 8} | config
    return PardecScheduler(sampler, **made)


def falling(width: int = 8) -> Tensor:
    """Logits of token i at position i, each less confident than the one before; four of eight pass 0.95."""
    logits = torch.zeros(1, width, VOCAB)
    logits[0, torch.arange(width), torch.arange(width)] = 10.0 - torch.arange(width)
    return logits


# --- timesteps and the schedule ---


@pytest.mark.parametrize("sampler", RULES)
def test_timesteps_count_down(sampler: str | None) -> None:
    made = scheduler(sampler)
    made.set_timesteps(8)
    assert made.num_inference_steps == 8
    assert made.timesteps.tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    for steps, block in ((0, None), (4, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            made.set_timesteps(steps, block_length=block)


def test_the_schedule_is_that_of_the_steps() -> None:
    made = scheduler(block_length=16)
    made.set_timesteps(4)
    assert made._transfer_schedule.sum() == 16


# --- configs ---


@pytest.mark.parametrize("sampler", [None, "factor:f=0.5"])
def test_a_config_is_saved_and_loaded(sampler: str | None, tmp_path: Path) -> None:
    rest = {} if sampler else {"threshold": 0.8, "editing_threshold": 0.5, "minimal_topk": 2}
    made = scheduler(sampler, block_length=64, **rest)
    made.save_config(tmp_path)
    for again in (PardecScheduler.from_pretrained(tmp_path), PardecScheduler.from_config(made.config)):
        assert again.config.sampler == sampler
        assert again.config.block_length == 64
        assert {name: again.config[name] for name in rest} == rest


def test_a_config_of_diffusers_scheduler_will_do() -> None:
    made = PardecScheduler.from_config(BlockRefinementScheduler(block_length=16, threshold=0.7).config)
    assert (made.config.sampler, made.config.block_length, made.config.threshold) == (None, 16, 0.7)


@pytest.mark.parametrize("arguments", [{"threshold": 0.7}, {"editing_threshold": 0.5}, {"minimal_topk": 2}])
def test_what_a_spec_says_itself_is_refused_beside_it(arguments: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="cannot be combined with a sampler") as error:
        scheduler("threshold", **arguments)
    assert "spec 'threshold'" in error.value.hint


# --- one step ---


@pytest.mark.parametrize("sampler", RULES)
def test_a_step_commits_what_is_sure_and_at_least_its_share(sampler: str | None) -> None:
    for steps, count in ((2, 4), (8, 4), (1, 8)):
        made = scheduler(sampler, block_length=8)
        made.set_timesteps(steps)
        out = made.step(falling(), 0, torch.full((1, 8), MASK), mask_token_id=MASK, return_dict=True)
        assert out.transfer_index.tolist() == [[True] * count + [False] * (8 - count)]
        assert out.prev_sample.tolist() == [[*range(count)] + [MASK] * (8 - count)]
        assert not out.editing_transfer_index.any()


def test_above_one_a_threshold_is_never_passed() -> None:
    made = scheduler(block_length=8)
    made.set_timesteps(8)
    out = made.step(falling(), 0, torch.full((1, 8), MASK), mask_token_id=MASK, threshold=2.0)
    assert out.transfer_index.sum() == 1


GIVEN = torch.tensor([[10, 20, MASK, MASK]])


def differing() -> Tensor:
    """Logits of another token at position 0, of the same token at 1, and of any tokens at the masks."""
    logits = torch.zeros(1, 4, VOCAB)
    logits[0, [0, 1, 2, 3], [15, 20, 5, 6]] = torch.tensor([20.0, 20.0, 5.0, 6.0])
    return logits


@pytest.mark.parametrize(
    ("sampler", "threshold"), [(None, 0.5), (RULES[2], None), (None, None), (RULES[1], None), (None, 0.0)]
)
@pytest.mark.parametrize("prompt", [None, torch.tensor([True, True, False, False])])
def test_what_stands_is_edited_where_that_is_asked_for_and_it_is_no_prompt(
    sampler: str | None, threshold: float | None, prompt: Tensor | None
) -> None:
    made = scheduler(sampler, block_length=4)
    made.set_timesteps(2)
    how = {"mask_token_id": MASK, "editing_threshold": threshold, "prompt_mask": prompt}
    out = made.step(differing(), 0, GIVEN, **how)
    edits = prompt is None and (bool(threshold) or sampler == RULES[2])
    assert out.editing_transfer_index.tolist() == [[edits, False, False, False]]
    assert out.prev_sample[0, :2].tolist() == [15 if edits else 10, 20]
    assert not out.transfer_index[0, :2].any()
    assert out.transfer_index.sum() >= 1


@pytest.mark.parametrize("sampler", RULES)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_tuple_has_six_parts_and_a_batch_its_rows(sampler: str | None, rows: int) -> None:
    logits = torch.randn(rows, 4, VOCAB, generator=torch.Generator().manual_seed(0))
    sample = torch.full((rows, 4), MASK)
    made = scheduler(sampler, block_length=4)
    made.set_timesteps(2)
    plain = made.step(logits, torch.tensor(0), sample, mask_token_id=MASK, return_dict=False)
    assert isinstance(plain, tuple)
    assert len(plain) == 6
    assert plain[0].shape == plain[1].shape == (rows, 4)
    assert (plain[1].sum(1) >= 2).all()


# --- whether a block and a row go on ---


@pytest.mark.parametrize("sampler", RULES)
@pytest.mark.parametrize(
    ("rows", "how"),
    [
        ([True, True], {"step_idx": 0, "masks_remaining": True, "editing_enabled": False, "post_steps": 0}),
        ([False], {"step_idx": 5, "masks_remaining": False, "editing_enabled": True, "post_steps": 1}),
        ([False], {"step_idx": 8, "masks_remaining": True, "editing_enabled": False, "post_steps": 0}),
    ],
    ids=["all rows have ended", "nothing is open and nothing was edited", "the steps are over"],
)
def test_a_block_is_left(sampler: str | None, rows: list[bool], how: dict[str, Any]) -> None:
    made = scheduler(sampler)
    made.set_timesteps(8)
    none = torch.zeros(len(rows), 32, dtype=torch.bool)
    going = made.check_block_should_continue(
        **how, editing_transfer_index=none, max_post_steps=16, finished=torch.tensor(rows)
    )
    assert going is False


@pytest.mark.parametrize(
    ("row", "committed", "was", "expected"),
    [
        ([10, 11, 5, 2, 99, 99], [0, 0, 0, 2], False, True),
        ([10, 11, 99, 2], [0, 2], False, False),
        ([10, 11, 5, 6], [0, 0], True, True),
        ([10, 11, 5, 6], [5, 6], False, False),
    ],
    ids=["an end and nothing open before it", "a mask before the end", "ended before", "no end"],
)
def test_a_row_has_ended(row: list[int], committed: list[int], was: bool, expected: bool) -> None:
    transferred = torch.tensor([committed])
    for kind in (PardecScheduler, scheduler("threshold"), BlockRefinementScheduler):
        finished = kind.check_eos_finished(
            cur_x=torch.tensor([row]),
            sampled_tokens=transferred,
            final_transfer=transferred == 2,
            finished=torch.tensor([was]),
            eos_token_id=2,
            mask_token_id=99,
            prompt_length=2,
        )
        assert finished.tolist() == [expected]


# --- what is inherited, of which diffusers' tests assert values ---


@pytest.mark.parametrize("sampler", RULES)
@pytest.mark.parametrize(
    "name", ["add_noise", "get_num_transfer_tokens", "_top_k_filtering", "_top_p_filtering", "_sample_from_logits"]
)
def test_members_are_diffusers_own(sampler: str | None, name: str) -> None:
    assert name not in {*vars(PardecScheduler), *vars(scheduler(sampler))}


def test_the_mode_without_a_mask_token_is_diffusers_own_and_none_of_a_spec() -> None:
    def committed(made: PardecScheduler, *steps: int, sure: int = 0) -> list[int]:
        logits, sample, counts = torch.zeros(1, 256, 50), torch.ones(1, 256, dtype=torch.int64), []
        logits[0, :sure, 0] = 1e6
        for step in steps:
            sample = made.step(logits, step, sample, mask_token_id=None).prev_sample
            counts.append(int(made._committed.sum()))
        return counts

    how = {"block_length": 256, "num_inference_steps": 48}
    assert committed(scheduler(threshold=1.0, **how), 0, 1, 47) == [6, 11, 256]
    assert committed(scheduler(threshold=0.5, **how), 0, sure=20) == [20]
    assert committed(scheduler(threshold=1.0, **how), 5, 0)[-1] == 6  # a new block
    made = scheduler(threshold=1.0, editing_threshold=0.5, **how)
    made._committed = torch.ones(1, 256, dtype=torch.bool)
    logits, sample = torch.zeros(1, 256, 50), torch.zeros(1, 256, dtype=torch.int64)
    logits[0, 0, 1] = 1e6
    assert made.step(logits, 24, sample, mask_token_id=None).prev_sample.tolist() == [[1] + [0] * 255]
    with pytest.raises(SpecError, match="mask_token_id is missing"):
        scheduler("threshold").step(logits, 0, sample)


# --- as a policy ---


def test_as_a_policy_it_is_its_rule_and_a_spec_goes_by_itself() -> None:
    assert str(policy(scheduler(threshold=0.4)).spec).count("PardecScheduler:threshold=0.4") == 1
    with pytest.raises(SpecError, match="runs the sampler 'margin") as error:
        policy(scheduler("margin+threshold"))
    assert "sampler='margin+threshold'" in error.value.hint
