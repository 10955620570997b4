"""An MTP layer drafts: states as in one pass over the whole row, and what a trained one is worth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.draft_modules.contracts import ModuleName
from pardec.models.errors import ModelError
from pardec.models.plan import Plan, TargetStates
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.speculative.draft.eagle_state import PairState
from tests.models.draft_modules.test_eagle import doubles, same_rope
from tests.reference import naive_mtp
from tests.samplers.ar_toys import run, toy_ar
from tests.samplers.fake_draft_model import NEW, RAGGED, Pausing, compared_states, target
from tests.samplers.module_files import write

SHAPES = ("chain", "template:widths=3-2-1", "dyspec:nodes=8,children=3", "beam:beams=3,nodes=8")
SIZES = {"heads": 2, "kv_heads": 1, "head_dim": 8}
STATES = {"MiMo": TargetStates((3,)), "nextn": TargetStates(normed=True)}  # of a target of four layers
STYLES = tuple(STATES)


@contextmanager
def compared(style: str, tensors: dict[str, Tensor], config: dict[str, Any]) -> Iterator[list[float]]:
    """Compares the state after every drafted node with one pass over its whole text, in float64."""

    def truth(state: PairState, text: list[int], drafted: list[int]) -> Tensor:
        model: Any = state.context.model
        plan = Plan.full(torch.tensor([text]), model.visible())
        known = STATES[style].of(model.forward(replace(plan, hidden=STATES[style].layers)))[0, :-1]
        tokens = [*text, *drafted][1:]
        return naive_mtp.draft(style, tensors, config, model.decoder.embedding, tokens, known)[0][-1]

    with compared_states(truth) as errors:
        yield errors


@pytest.mark.parametrize("shape", ["pausing", "template:widths=3-2-1"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.covers(1)
def test_mtp_states_are_the_verified_ones_after_any_history(style: str, shape: str, tmp_path: Path) -> None:
    """Accepted nodes have the target's states and never the layer's; rows that skipped rounds catch up."""
    tensors, config = naive_mtp.layer(style, 16, **SIZES)
    write(tmp_path, tensors, config)
    model = toy_ar(0, 5, 3.0, layers=4, dtype=torch.float64)
    made = registry.resolve(f"mtp:name={tmp_path},k=4+{shape.replace('pausing', 'chain')}", "ar", sampling=True)
    if shape == "pausing":
        made = replace(made, length=Pausing())
    with doubles():
        same_rope(draft_models.draft_module(ModuleName("mtp", str(tmp_path)), model), config)
        with compared(style, tensors, config) as errors:
            done = run(model, made, RAGGED, [2, 25, 18, 25], temperature=4.0)  # a row ends before any drafts
    assert max(errors) < 1e-9
    assert len(errors) > 50
    assert sum(map(sum, done.trace.accepted)) > 3
    module, states = draft_models.draft_module(ModuleName("mtp", str(tmp_path)), model), torch.randn(3, 16).double()
    weight = tensors[f"{naive_mtp.STEMS[style]}{naive_mtp.NORMS[style][3]}.weight"].double()
    read = states if style == "nextn" else naive_mtp.norm(states, weight, config["rms_norm_eps"])
    torch.testing.assert_close(module._head(states), model.decoder.unembed(read))


def test_mtp_without_a_name_is_refused_where_the_target_has_no_layer() -> None:
    with pytest.raises(ModelError, match="the files of toy have no draft layer of kind mtp"):
        run(target(), "mtp", RAGGED, NEW)


PROMPTS = [
    "Tom has 18 cups. He loses 4. He finds 12 cups. How many cups does Tom have now?",
    "Hugo has 55 apples. Olga removes 9. Ravi buys 3. How many remain?",
    "List the numbers from 3 to 9.",
]


@pytest.mark.seeds("arXiv:2412.19437")
def test_a_trained_mtp_layer_is_right_more_often_than_the_first_head_of_medusa(tmp_path: Path) -> None:
    """One layer, used again for every further token, also drafts those: more than one token a round, greedy text."""
    for style, shape in zip(STYLES, ("pausing", "template:widths=3-2-1"), strict=True):
        test_mtp_states_are_the_verified_ones_after_any_history(style, shape, tmp_path / style)
    model = pardec.load("tiny-llama", device="cpu")
    plain = model.generate(PROMPTS, sampler="sequential")

    def accepted(spec: str) -> float:
        """Drafted tokens that stand, per forward after the prompt's."""
        done = model.generate(PROMPTS, sampler=spec)
        assert done.tokens == plain.tokens
        return sum(map(len, done.tokens)) / sum(done.nfe) - 1

    one, three = accepted("mtp:name=tiny-llama-mtp,k=1"), accepted("mtp:name=tiny-llama-mtp,k=3")
    assert one > accepted("medusa:name=tiny-llama-medusa,k=1")
    assert three > max(1, one)
