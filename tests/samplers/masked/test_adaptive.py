"""`adaptive`: token for token a plain loop; with as many tokens as positions, the likeliest everywhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.samplers.masked.ops.uniform_noise import NoisyState
from tests.reference import naive_uniform
from tests.reference.naive_uniform import Rule
from tests.samplers.masked.uniform_toys import VOCAB, predictions, uniform_toy
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import fill, fill_alone, prompts, request, run, table, toy

ROW: list[int | None] = [1, 2, None, None, 4, None, None, None, None, None, 3]
ASKED = [VOCAB if token is None else token for token in ROW]
ALIKE = torch.tensor([0.5, 0.2, 0.1, 0.05, 0.05, 0.05, 0.05])


def alike() -> LanguageModel:
    """A model that predicts the same at each position, so that several tokens would gain as much."""
    model = table(ALIKE.expand(len(ROW), VOCAB))
    return replace(model, decoding_config=replace(model.decoding_config, mask_id=VOCAB, uniform=True))


def each_row_counts_the_steps_of_its_own_block() -> None:
    state = NoisyState(np.array([0, 0]))
    for started, taken in (([True, True], [0, 0]), ([False, False], [3, 3]), ([True, False], [0, 5])):
        step = np.full(2, max(taken))
        canvas: Any = SimpleNamespace(block_started=np.array(started), step=step)
        assert state.steps_taken(canvas).tolist() == taken


@pytest.mark.seeds("arXiv:2512.10858")
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize(("steps", "tokens"), [(5, 1), (3, 2), (9, 3), (2, 20)])
def test_tokens_are_those_of_the_plain_loop(steps: int, tokens: int, temperature: float) -> None:
    each_row_counts_the_steps_of_its_own_block()
    for model, seed in ((uniform_toy(), 3), (uniform_toy(), 4), (alike(), 5)):
        asked = request([ASKED], [2], seeds=[seed], temperature=temperature)
        found = run(model, f"adaptive:steps={steps},tokens={tokens}", asked)
        rule = Rule("adaptive", steps, temperature, tokens=tokens)
        expected = naive_uniform.decode(partial(predictions, model), ROW, 2, rule, seed, 4)
        assert found.tokens[0].tolist() == expected.tokens
        assert found.nfe[0] == expected.forwards
    if temperature:  # of the last model, the sharpened probabilities of what stands there
        share = ALIKE ** (1 / temperature)
        scores = (share / share.sum())[found.tokens[0, [2, 3]]]
        assert found.trace.commit_score[0, [2, 3]].tolist() == pytest.approx(scores.tolist(), abs=1e-6)


def test_positions_that_no_step_picks_keep_their_random_tokens() -> None:
    model = uniform_toy()
    rule = Rule("adaptive", 2, 0.0)
    expected = naive_uniform.decode(partial(predictions, model), ROW, 2, rule, 7, 11)
    found = run(model, "adaptive:steps=2", request([ASKED], [2], seeds=[7], block_length=11)).tokens[0].tolist()
    assert found == expected.tokens
    first = naive_uniform.decode(partial(predictions, model), ROW, 2, Rule("adaptive", 1, 0.0), 7, 11).tokens
    assert sum(one != other for one, other in zip(found, first, strict=True)) <= 1


def test_with_all_positions_at_temperature_0_it_overwrites_the_canvas_with_the_likeliest_tokens() -> None:
    model = uniform_toy()
    found = run(model, "adaptive:steps=3,tokens=9", request([ASKED], [2], seeds=[7], block_length=11))
    rule = Rule("adaptive", 2, 0.0, tokens=9)
    before = naive_uniform.decode(partial(predictions, model), ROW, 2, rule, 7, 11).tokens
    likeliest = predictions(model, before).argmax(1).tolist()
    expected = [likeliest[p] if token is None else token for p, token in enumerate(ROW)]
    assert found.tokens[0].tolist() == expected


def test_a_row_is_the_same_alone_and_in_a_batch() -> None:
    fill_alone(uniform_toy(), "adaptive:steps=4,tokens=2", prompts((3, 1, 5), vocab=VOCAB), (9, 4, 6), temperature=1.0)


test_what_is_refused = refused_specs(
    [
        ("adaptive+threshold", "the select is 'threshold', which would have no effect"),
        ("adaptive+remdm", "writes the whole block at every step, and remdm acts between steps"),
    ]
)


def test_models_of_masks_are_refused() -> None:
    with pytest.raises(SpecError, match="is for models trained on uniform noise, such as Sumi"):
        fill(toy("dream"), "adaptive", prompts((3,)), 4)
