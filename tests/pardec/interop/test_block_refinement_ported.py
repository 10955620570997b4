"""PardecScheduler: without a spec it is diffusers' BlockRefinementScheduler, with one pardec's loop commits and draws.

A masked model is what a spec decodes, so that `mask_token_id=None`, the uniform corruption mode, is refused with one.
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
RULES = ["threshold:tau=0.95", "threshold:tau=0.95+edit:tau=0.5"]


def scheduler(sampler: str | None = None, **config: Any) -> PardecScheduler:
    made = {"block_length": 32, "num_inference_steps": 8} | config
    return PardecScheduler(sampler, **made)


def falling(width: int = 8) -> Tensor:
    """Logits of token i at position i, each less confident than the one before; four of eight pass 0.95."""
    logits = torch.zeros(1, width, VOCAB)
    logits[0, torch.arange(width), torch.arange(width)] = 10.0 - torch.arange(width)
    return logits


# --- without a spec ---

GIVEN = torch.tensor([[10, 20, MASK, MASK]])


def differing() -> Tensor:
    """Logits of another token at position 0, of the same token at 1, and of any tokens at the masks."""
    logits = torch.zeros(1, 4, VOCAB)
    logits[0, [0, 1, 2, 3], [15, 20, 5, 6]] = torch.tensor([20.0, 20.0, 5.0, 6.0])
    return logits


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"threshold": 2.0, "minimal_topk": 2},
        {"threshold": 0.01, "return_dict": False},
        {"editing_threshold": 0.5},
        {"editing_threshold": 0.5, "prompt_mask": torch.tensor([True, True, False, False])},
        {"temperature": 3.0, "top_k": 9, "top_p": 0.9},
        {"temperature": 3.0, "sampling_method": "multinomial"},
        {"mask_token_id": None},
    ],
    ids=str,
)
def test_without_a_spec_a_step_is_diffusers_own(how: dict[str, Any]) -> None:
    seen = []
    for kind in (BlockRefinementScheduler, PardecScheduler):
        made = kind(block_length=4, num_inference_steps=2)
        made.set_timesteps(2)
        draws = torch.Generator().manual_seed(1)
        out = made.step(differing(), 0, GIVEN, **{"mask_token_id": MASK, "generator": draws, **how})
        parts = out if isinstance(out, tuple) else tuple(vars(out).values())
        edited = parts[2] if parts[2] is not None else torch.zeros(1, 4, dtype=torch.bool)
        state = {"masks_remaining": False, "editing_enabled": True, "editing_transfer_index": edited}
        rest = {"post_steps": 1, "max_post_steps": 16, "finished": torch.tensor([False])}
        going = made.check_block_should_continue(step_idx=1, **state, **rest)
        values = [value.tolist() if isinstance(value, Tensor) else value for value in parts]
        seen.append((type(out), values, bool(going), made.timesteps.tolist()))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("sampler", [None, *RULES])
def test_counts_that_are_not_positive_are_refused(sampler: str | None) -> None:
    for steps, block in ((0, None), (4, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            scheduler(sampler).set_timesteps(steps, block_length=block)


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


# --- one step of a spec ---


@pytest.mark.parametrize("sampler", RULES)
def test_a_step_commits_what_is_sure_and_at_least_its_share(sampler: str) -> None:
    for steps, count in ((2, 4), (8, 4), (1, 8)):
        made = scheduler(sampler, block_length=8)
        made.set_timesteps(steps)
        out = made.step(falling(), 0, torch.full((1, 8), MASK), mask_token_id=MASK, return_dict=True)
        assert out.transfer_index.tolist() == [[True] * count + [False] * (8 - count)]
        assert out.prev_sample.tolist() == [[*range(count)] + [MASK] * (8 - count)]
        assert not out.editing_transfer_index.any()


@pytest.mark.parametrize("sampler", RULES)
@pytest.mark.parametrize("prompt", [None, torch.tensor([True, True, False, False])])
def test_what_stands_is_edited_by_an_edit_stage_unless_it_is_prompt(sampler: str, prompt: Tensor | None) -> None:
    made = scheduler(sampler, block_length=4)
    made.set_timesteps(2)
    out = made.step(differing(), 0, GIVEN, mask_token_id=MASK, prompt_mask=prompt)
    edits = prompt is None and "edit" in sampler
    assert out.editing_transfer_index.tolist() == [[edits, False, False, False]]
    assert out.prev_sample[0, :2].tolist() == [15 if edits else 10, 20]
    assert not out.transfer_index[0, :2].any()
    assert out.transfer_index.sum() >= 1


@pytest.mark.parametrize("sampler", RULES)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_tuple_has_six_parts_and_a_batch_its_rows(sampler: str, rows: int) -> None:
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
def test_a_block_is_left(sampler: str, rows: list[bool], how: dict[str, Any]) -> None:
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


def test_a_mode_without_a_mask_token_is_refused() -> None:
    with pytest.raises(SpecError, match="mask_token_id is missing"):
        scheduler("threshold").step(differing(), 0, GIVEN)


# --- as a policy ---


def test_as_a_policy_it_is_its_rule_and_a_spec_goes_by_itself() -> None:
    assert str(policy(scheduler(threshold=0.4)).spec).count("PardecScheduler:threshold=0.4") == 1
    with pytest.raises(SpecError, match="runs the sampler 'margin") as error:
        policy(scheduler("margin+threshold"))
    assert "sampler='margin+threshold'" in error.value.hint
