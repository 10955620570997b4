"""The target's first layers draft: each layer runs once per position, and the verify forward reuses their outputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from unittest.mock import patch

import pytest
from torch import Tensor

from pardec.models.decoder import DecoderLayer
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from pardec.samplers.speculative.draft.earlyexit import EarlyExit
from tests.grids import chequered
from tests.samplers.ar_toys import rows, run
from tests.samplers.fake_draft_model import NEW, RAGGED, Pausing, distribution, distribution_errors, greedy, target

SHAPES = ("chain", "template:widths=3-2-1", "dyspec:nodes=8,children=3", "beam:beams=3,nodes=8")


@pytest.mark.parametrize(("layers", "shape", "temperature"), chequered([1, 3], SHAPES, [0.0, 1.0]))
@pytest.mark.covers(1)
def test_every_distribution_is_that_of_a_whole_forward(shape: str, layers: int, temperature: float) -> None:
    """The drafter's are those of the first layers, the target's those of all, though these never ran in one forward."""
    model = target()
    with distribution_errors(lambda text: distribution(model, text, layers=slice(0, layers))) as errors:
        done = run(model, f"earlyexit:layers={layers},k=4+{shape}", RAGGED, NEW, temperature=temperature)
    assert max(errors) < 5e-5
    assert max(map(max, done.trace.accepted)) >= 2


def test_rows_without_a_draft_of_their_own_go_through_all_layers_too() -> None:
    model = target()
    made = replace(registry.resolve("earlyexit:layers=2,k=4", "ar"), length=Pausing())
    with distribution_errors(lambda text: distribution(model, text, layers=slice(0, 2))) as errors:
        done = run(model, made, RAGGED, NEW)
    assert rows(done) == greedy()
    assert max(errors) < 5e-5
    drafted = list(zip(*(row[1:7] for row in done.trace.drafted), strict=False))
    assert any(0 in round_ and any(round_) for round_ in drafted)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layers", [1, 2])
def test_a_verified_position_runs_only_the_layers_that_are_left(shape: str, layers: int) -> None:
    queries: Counter[int] = Counter()
    forward, run_ = DecoderLayer.forward, LanguageModel.run
    parts: list[tuple[slice | None, int]] = []

    def watched(self: DecoderLayer, h: Tensor, step, index: int, picked=None):  # type: ignore[no-untyped-def]
        queries[index] += len(h)
        return forward(self, h, step, index, picked)

    def told(self: LanguageModel, plan, cache=None):  # type: ignore[no-untyped-def]
        parts.append((plan.layers, plan.width))
        return run_(self, plan, cache)

    prompt = [1, 0, 2, 2]
    with patch.object(DecoderLayer, "forward", watched), patch.object(LanguageModel, "run", told):
        done = run(target(), f"earlyexit:layers={layers},k=3+{shape}", [prompt], 14)
    verified = [width for part, width in parts if part == slice(layers, None)]
    assert len(verified) >= 2
    alone = sum(width for part, width in parts if part is None) - len(prompt)  # rounds that had no room to draft
    assert done.tokens_fed[0] == len(prompt) + sum(verified) + alone
    assert len({queries[layer] for layer in range(layers, 4)}) == 1
    assert queries[layers] == done.tokens_fed[0]
    assert all(part in (None, slice(0, layers), slice(layers, None)) for part, _ in parts)
    if shape in ("chain", "template:widths=3-2-1"):  # the others prune what they have distribution_errors
        assert queries[0] == queries[3]
    assert done.draft_forwards[0] == sum(part == slice(0, layers) for part, _ in parts)


def test_an_exit_after_the_last_layer_is_refused() -> None:
    with pytest.raises(SpecError, match="earlyexit: layers must be fewer than the 4 of toy, got 4") as error:
        run(target(), "earlyexit:layers=4", [[1]], 3)
    assert error.value.hint == "earlyexit:layers=2"


def test_a_draft_costs_the_share_of_the_layers_that_it_runs() -> None:
    assert [EarlyExit(layers=layers).cost_ratio(target(), None) for layers in (1, 2, 3)] == [1 / 4, 1 / 2, 3 / 4]
