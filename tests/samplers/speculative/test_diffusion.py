"""A masked model drafts for an autoregressive one: a plain version, greedy text, the length of drafts, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.errors import ModelError, SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.speculative.contracts import Draft
from pardec.samplers.speculative.draft.diffusion import DiffusionState
from pardec.tasks import task
from tests.reference import naive_diffusion_draft
from tests.samplers.ar_toys import plain_greedy, rows, run, toy_ar
from tests.samplers.fake_draft_model import NEW, RAGGED, greedy, target
from tests.samplers.toys import EVERY_FAMILY, biased, toy

FAMILIES = [name for name, (_, attention) in EVERY_FAMILY.items() if attention in ("bidirectional", "block-causal")]
SMALL = "step=3,small=2,k=8,block=4,low=0.4,tau=0.35"  # so that every branch of the rule is taken


@contextmanager
def masked(model: LanguageModel) -> Iterator[None]:
    with patch.object(draft_models, "language_model", lambda name, device, dtype: model):
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_diffusion_keeps_greedy_text_in_a_ragged_batch_and_alone(family: str) -> None:
    with masked(toy(family, vocab=5, sharp=1.0)):
        assert rows(run(target(), f"diffusion:name=toy,{SMALL}", RAGGED, NEW)) == greedy()
        alone = run(target(), f"diffusion:name=toy,{SMALL}", RAGGED[1:2], NEW[1])
    assert rows(alone) == greedy()[1:2]


@pytest.mark.parametrize("size", [4, 5, 7])
@pytest.mark.parametrize("family", FAMILIES)
def test_diffusion_drafts_with_a_head_padded_to_another_length(family: str, size: int) -> None:
    """As Fast-dLLM's 1.5B, of 151,936 rows, does for Qwen2.5-7B of 152,064; padding is most likely here."""
    tokenizer = SimpleNamespace(get_vocab=lambda: {str(i): i for i in range(4)})
    verified = replace(target(), tokenizer=tokenizer)
    for padding in range(5, size):
        drafter = biased(toy(family, vocab=size, sharp=1.0), padding, 50.0)
        with masked(replace(drafter, tokenizer=tokenizer)):
            done = run(verified, f"diffusion:name=toy,{SMALL}", RAGGED, NEW)
        assert rows(done) == greedy()
    with masked(replace(toy(family, vocab=size, sharp=1.0), tokenizer=tokenizer)):
        done = run(verified, f"diffusion:name=toy,{SMALL}", RAGGED, NEW)
    assert rows(done) == greedy()
    assert any(map(sum, done.trace.drafted))


def predict(model: LanguageModel, canvas: list[int], at: int) -> Tensor:
    """[V] the model's probabilities at a position of a canvas."""
    logits = model.forward(Plan.full(torch.tensor([canvas]), model.visible())).logits()[0]
    return logits[max(0, at - model.decoding_config.shift)].double().softmax(-1)


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"sdar"}))
def test_diffusion_drafts_are_those_of_a_plain_version_after_any_history(family: str) -> None:
    """So the K/V that are kept are those of committed blocks, also after a rejection inside one."""
    model, verified, lengths = toy(family, vocab=5, sharp=1.0), target(), set()
    propose, block = DiffusionState.draft, model.decoding_config.block

    def compared(self: DiffusionState, remaining: np.ndarray) -> Draft:
        draft = propose(self, remaining)
        for row in range(len(remaining)):
            tokens, forwards = naive_diffusion_draft.draft(
                lambda canvas, at: predict(model, canvas, at),
                self.context.text.row(row).tolist(),
                mask=model.decoding_config.mask_id or 0,
                most=min(8, int(remaining[row])),
                step=3,
                small=2,
                block=block or 4,
                low=0.4,
                tau=0.35,
                absolute=block is not None,
            )
            assert draft.tokens[row, 1 : draft.sizes[row]].tolist() == tokens
            assert draft.forwards >= forwards
            lengths.add(len(tokens))
        return draft

    with masked(model), patch.object(DiffusionState, "draft", compared):
        done = run(verified, f"diffusion:name=toy,{SMALL}", RAGGED, NEW, temperature=6.0)
    assert sum(map(sum, done.trace.accepted)) >= 2
    assert {3, 6} <= lengths


def a_confidence_of_just_the_bound_is_enough() -> None:
    """A forward commits a step of two tokens at once, and at a `low` that they reach another step follows."""
    counts = list[tuple[int, int]]()
    for low in (0.5, 0.51):
        goals = list[int]()

        def half(state: DiffusionState, tokens: Tensor, at: Tensor, goal: np.ndarray, goals: Any = goals) -> Any:
            goals.append(int(goal[0]))
            return torch.full(at.shape, 0.5), at.clamp(0, 1)

        with masked(toy("llada", vocab=5)), patch.object(DiffusionState, "_predict", half):
            done = run(target(), f"diffusion:name=toy,step=2,small=2,k=4,low={low},tau=0.5", [[1, 2]], 9)
        counts.append((max(done.trace.drafted[0]), goals.count(goals[0])))
    assert counts == [(4, 1), (2, 1)], "the tokens of the longest draft, and the forwards of the first step"


def a_draft_ends_where_the_masked_model_does() -> None:
    """Of 8 positions 4 are the prompt and one the first token: three are drafted, and none once the text has 8."""
    for family in ("sdar", "llada"):
        with masked(replace(toy(family, vocab=5, sharp=1.0), max_positions=8)):
            done = run(target(), "diffusion:name=toy,step=3,k=9,low=0", [[1, 0, 4, 2]], 20)
        assert done.trace.drafted[0][:2] == (0, 3)
        lengths = 4 + np.cumsum(done.trace.gained[0][:-1])
        assert (np.minimum(done.trace.drafted[0][1:], 8 - lengths.clip(max=8)) == done.trace.drafted[0][1:]).all()
        assert rows(done) == [plain_greedy(target(), [1, 0, 4, 2], 20)]


@pytest.mark.seeds("arXiv:2512.20573")
def test_diffusion_drafts_grow_where_the_model_is_sure_and_take_fewer_forwards_than_copies() -> None:
    """Lists are drafted far beyond one step, sums of several are not; the text is the target's."""
    a_confidence_of_just_the_bound_is_enough()
    a_draft_ends_where_the_masked_model_does()
    for family in ("sdar", "llada"):  # block-causal and bidirectional
        test_diffusion_drafts_are_those_of_a_plain_version_after_any_history(family)
    model = pardec.load("tiny-llama", device="cpu")
    drafts: dict[str, float] = {}
    for name in ("lists", "arithmetic"):
        prompts = [one.prompt for one in task(name).problems(split="heldout", n=8, seed=3)]
        plain, copied, done = (
            model.generate(prompts, sampler=spec, max_new_tokens=60)
            for spec in ("sequential", "lookup", "diffusion:name=tiny-dream")
        )
        assert done.tokens == plain.tokens
        assert sum(done.nfe) < sum(copied.nfe)
        drafts[name] = sum(map(sum, done.trace.drafted)) / max(1, sum(done.nfe) - len(prompts))
    short = model.generate(prompts, sampler="diffusion:name=tiny-dream,low=1.01")
    assert max(map(max, short.trace.drafted)) == 10
    assert drafts["lists"] > 20


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("diffusion", "diffusion: name is missing"),
        ("diffusion:name=toy,step=0", "step must be at least 1, got 0"),
        ("diffusion:name=toy,low=-1", "low must be at least 0, got -1"),
        ("diffusion:name=toy+dyspec", "dyspec"),
        ("diffusion:name=toy+goodput", "'goodput' needs a drafter with a model"),
    ],
)
def test_diffusion_specs_that_make_no_sense_are_refused(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        registry.resolve(spec, "ar")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (toy_ar(1, 5), "it has causal attention and no mask token"),
        (toy("wedlm", vocab=5), "it has windowed-causal attention"),
        (toy("llada", vocab=9), "do not share their tokens"),
    ],
)
def test_models_that_cannot_draft_by_diffusion_are_refused(model: Any, message: str) -> None:
    with masked(model), pytest.raises(ModelError, match=message):
        run(target(), "diffusion:name=toy", RAGGED, NEW)
