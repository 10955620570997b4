"""Random calls of diffusers' LLaDA2Pipeline: PardecPipeline gives the same rows, with its own model and with theirs."""

from __future__ import annotations

import warnings
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    AmusedScheduler,
    BlockRefinementScheduler,
    DiscreteDDIMScheduler,
    LLaDA2Pipeline,
    VQDiffusionScheduler,
)
from torch import Tensor, nn

import pardec
from pardec.interop.diffusers import PardecPipeline, PardecScheduler, policy
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible
from tests.samplers import toys

CALLS = 32


class Network(nn.Module):
    """A toy with the interface that LLaDA2Pipeline expects: no cache, hidden padding, and an unlikely mask token."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model, self.calls = model, 0

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Any:
        self.calls += 1
        width = input_ids.shape[1]
        assert torch.equal(position_ids, torch.arange(width).expand_as(input_ids))
        block = torch.arange(width) // toys.BLOCK
        seen = (block[None, :] <= block[:, None])[None] & attention_mask.bool()[:, None]
        hidden = self.model.forward(Plan.full(input_ids, Visible.mask(seen)))
        logits = hidden.logits(self.model.rows(position_ids)).clone()
        logits[..., toys.MASK] = -1e9
        return SimpleNamespace(logits=logits)


@cache
def model(at: int) -> LanguageModel:
    """A toy model; for odd `at` the end token is made likely."""
    made = toys.toy(("sdar", "shifted-sdar")[at % 4 // 2], sharp=1.0, seed=at)
    return toys.biased(made, toys.EOS, 3.0) if at % 2 else made


def random_call(seed: int) -> dict[str, Any]:
    """A call with random arguments; rows are padded on either side, sometimes entirely prompt or entirely padding."""
    render = np.random.RandomState(seed)

    def one(*of: Any) -> Any:
        return of[render.randint(len(of))]

    rows, width, new = int(one(1, 1, 2, 3)), int(render.randint(0, 11)), int(render.randint(1, 15))
    ids = torch.from_numpy(render.randint(0, toys.VOCAB - 3, (rows, width)))
    call = {
        "input_ids": ids,
        "gen_length": new,
        "block_length": toys.BLOCK,
        "num_inference_steps": one(1, 2, 3, 4, 6, 32),
        "threshold": one(0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0),
        "editing_threshold": one(None, 0.0, 0.1, 0.15, 0.2, 0.3, 0.5),
        "max_post_steps": one(0, 1, 2, 16),
        "minimal_topk": one(1, 1, 2, 3) if new > 2 else 1,
        "eos_early_stop": bool(one(True, True, False)),
        "eos_token_id": toys.EOS,
        "mask_token_id": toys.MASK,
        "output_type": "seq",
    }
    if rows > 1 and width:
        padding = torch.from_numpy(render.randint(0, width, rows))
        real = torch.arange(width) >= padding[:, None]
        call["attention_mask"] = (real if one(True, False) else real.flip(1)).long()
    if not width:  # all masks of an empty row are alike: rounding alone would choose which of them comes first
        call["num_inference_steps"] = 1
    if one(True, False, False, False):
        call |= {"temperature": one(0.7, 1.0), "top_k": one(None, 0, 5), "top_p": one(None, 0.8)}
        call |= {"sampling_method": one("auto", "multinomial", "greedy")}
    return call


def options(pipeline: Any, call: dict[str, Any], seed: int) -> Tensor:
    sequences: Tensor = pipeline(**call, generator=torch.Generator().manual_seed(seed)).sequences
    return sequences


def test_random_calls_give_the_rows_of_llada2_pipeline() -> None:
    edited = ended = forwards = fed = 0
    for seed in range(CALLS):
        call, network = random_call(seed), Network(model(seed % 8))
        expected = options(LLaDA2Pipeline(model=network, scheduler=BlockRefinementScheduler()), call, seed)
        ours = PardecPipeline(model=pardec.Model(model(seed % 8)))
        assert torch.equal(options(ours, call, seed), expected), call
        result = ours.result
        looks = bool(
            call["editing_threshold"]
        )  # diffusers looks at a complete block once more even where it edits none
        assert result.nfe == [network.calls] * len(expected) if looks else result.nfe[0] <= network.calls
        forwards, fed = forwards + result.nfe[0], fed + result.tokens_fed[0]
        if seed % 4 == 0:
            assert torch.equal(options(PardecPipeline(model=network), call, seed), expected), call
            plain = options(ours, call | {"editing_threshold": None, "eos_early_stop": False}, seed)
            edited += not torch.equal(plain, expected)
        ended += bool((expected == toys.MASK).any())
    assert edited > CALLS // 16  # the calls ask for what they are to tell apart
    assert ended > CALLS // 10
    assert fed < forwards * 9  # blocks that are complete are not run again


def test_a_scheduler_without_a_spec_ends_rows_as_diffusers_does() -> None:
    """There, end tokens in the prompt, from a callback or from an earlier step end no row."""
    values = 0
    for seed in range(24):
        call, network = (
            random_call(seed) | {"eos_token_id": 1 + seed % 3, "eos_early_stop": True},
            Network(model(seed % 8)),
        )
        expected = options(LLaDA2Pipeline(model=network, scheduler=BlockRefinementScheduler()), call, seed)
        for kind in (LLaDA2Pipeline, PardecPipeline):
            assert torch.equal(options(kind(model=network, scheduler=PardecScheduler()), call, seed), expected), call
        values += bool((call["input_ids"] == call["eos_token_id"]).any())
    assert values > 5


def test_the_result_tells_of_diffusers_loop_what_it_tells_of_pardecs() -> None:
    """The two loops' results agree where both decode alike: one row, no editing."""
    pipeline = PardecPipeline(model=pardec.Model(model(0)))
    call = {
        "input_ids": torch.tensor(toys.prompts([5], seed=1)),
        "gen_length": 11,
        "editing_threshold": None,
        "threshold": 0.3,
        "eos_early_stop": False,
    }
    out = pipeline(**call)
    theirs = pipeline.result
    again = pipeline(
        **{**call, "threshold": 0.7, "editing_threshold": 0.5},
        sampler=policy(BlockRefinementScheduler(threshold=0.3), "eos@block", steps=11),
    )
    ours = pipeline.result
    assert torch.equal(out.sequences, again.sequences)
    assert (theirs.tokens, theirs.nfe, theirs.prompts) == (ours.tokens, ours.nfe, ours.prompts)
    assert np.array_equal(theirs.trace.commit_step, ours.trace.commit_step)
    assert np.allclose(theirs.trace.commit_score, ours.trace.commit_score, atol=1e-6)
    assert theirs.tokens_fed[0] <= ours.tokens_fed[0] + 2 * toys.BLOCK
    assert theirs.finish == ["length"]
    assert theirs.spec.startswith("LLaDA2Pipeline:threshold=0.3,editing_threshold=None,max_post_steps=16")


def test_pardecs_own_loop_stays_a_switch_away() -> None:
    """Rows run at their own pace, each like a row alone, with the sampler that the documentation names."""
    pipeline = PardecPipeline(model=pardec.Model(model(2)))
    sampler = policy(BlockRefinementScheduler(threshold=0.2), "edit:tau=0.2,post=17+eos", steps=3)
    ids = torch.tensor(toys.prompts([5, 5, 5], seed=2))
    how = {"gen_length": 12, "eos_early_stop": False}
    switched = pipeline(input_ids=ids, sampler=sampler, **how).sequences
    for row in range(3):
        assert torch.equal(pipeline(input_ids=ids[row : row + 1], sampler=sampler, **how).sequences[0], switched[row])
    default = {**how, "threshold": 0.2, "editing_threshold": 0.2, "num_inference_steps": 3}
    assert not torch.equal(pipeline(input_ids=ids, **default).sequences, switched)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"minimal_topk": 9}, "minimal_topk=9 is more than the 8 tokens"),
        ({"num_inference_steps": 0}, "num_inference_steps"),
        ({"block_length": 8}, "block_length=8"),
        ({"threshold": -0.1}, "threshold"),
        ({"temperature": -1.0}, "temperature"),
        ({"sampling_method": "beam"}, "sampling_method"),
        ({"output_type": "np"}, "output_type"),
        ({"mask_token_id": 3}, "mask_token_id=3"),
        ({"input_ids": torch.tensor([[1, toys.MASK]])}, "holds the mask token"),
        ({"input_ids": torch.tensor([[1, 99]])}, "outside the vocabulary"),
        ({"input_ids": torch.ones(1, 2)}, "int64"),
        ({"attention_mask": torch.ones(1, 3)}, "attention_mask"),
        ({"prompt": "words", "input_ids": None}, "Tokenizer is required"),
        ({"callback_on_step_end": print, "callback_on_step_end_tensor_inputs": ["logits"]}, "logits"),
    ],
)
def test_what_that_loop_refuses_is_pardecs_error(arguments: dict[str, Any], says: str) -> None:
    pipeline = PardecPipeline(model=pardec.Model(model(0)))
    with pytest.raises(SpecError, match=says) as error:
        pipeline(**{"input_ids": torch.tensor([[1, 2]]), "gen_length": 8, **arguments})
    assert error.value.hint


# --- families that diffusers' loop does not decode ---


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_other_families_take_an_empty_prompt_and_a_threshold_above_one(family: str) -> None:
    pipeline = PardecPipeline(model=pardec.Model(toys.toy(family, sharp=1.0)))
    how = {"gen_length": 8, "block_length": 4, "eos_early_stop": False, "editing_threshold": None}
    for ids in (torch.empty(2, 0, dtype=torch.int64), torch.tensor(toys.prompts([3, 3]))):
        out = pipeline(input_ids=ids, threshold=2.0, num_inference_steps=2, **how)
        assert out.sequences.shape == (2, 8)
        assert (out.sequences != toys.MASK).all()
        assert pipeline.result.nfe == [4, 4]  # two steps per block, whatever is sure
        assert pipeline.result.spec.startswith("confidence:of=filtered+BlockRefinementScheduler:threshold=2.0")


@pytest.mark.parametrize(
    "scheduler",
    [
        partial(AmusedScheduler, mask_token_id=7),
        DiscreteDDIMScheduler,
        partial(VQDiffusionScheduler, num_vec_classes=8),
    ],
)
def test_schedulers_that_decode_no_masked_text_are_refused_by_name(scheduler: Any) -> None:
    made = scheduler()
    name = type(made).__name__
    with pytest.raises(SpecError, match=f"{name} is not a scheduler"):
        policy(made)
    with pytest.raises(SpecError, match=f"{name} is not a scheduler"):
        PardecPipeline(model=pardec.Model(model(0)), scheduler=made)


def test_forwards_that_diffusers_makes_after_the_end_are_warned_of() -> None:
    """With an end token in the prompt, diffusers' loop never detects that the row has ended."""
    network = toys.biased(model(0), toys.EOS, 30.0)
    how = {"gen_length": 8 * toys.BLOCK, "eos_token_id": toys.EOS, "editing_threshold": None, "threshold": 0.5}
    pipeline = PardecPipeline(model=pardec.Model(network))
    with pytest.warns(UserWarning, match=r"made \d+ of \d+ forwards after every row had ended"):
        pipeline(input_ids=torch.tensor([[toys.EOS, 2, 3, 4]]), **how)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipeline(input_ids=torch.tensor([[1, 2, 3, 4]]), **how)
