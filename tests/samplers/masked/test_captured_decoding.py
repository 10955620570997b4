"""Whole decodes with captured forwards: the tokens, order and counts of uncaptured ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pardec.api import Model
from pardec.models.cuda_graphs.runner import GraphRunner
from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel
from pardec.samplers.events import Finished
from pardec.samplers.masked import predict
from pardec.samplers.ops.distribution import DenseDistribution
from tests.grids import thinned
from tests.models import traced
from tests.samplers import ar_toys, picture_toys, toys

MASKED = (
    ("llada", "sequential"),
    ("llada", "threshold:tau=0.2@dual"),
    ("dream", "threshold:tau=0.2@prefix"),
    ("sdar", "sequential@vicinity:before=2,after=3"),
    ("dream", "sequential@dkv"),
    ("llada", "threshold:tau=0.2+wino@dual"),
    ("dream", "threshold:tau=0.3+smoothing@dual"),
    ("dream", "credit+localleap+prophet@dual:refresh=2"),
    ("sdar", "threshold:tau=0.2@dual"),
    ("dream", "suffix:window=2+threshold:tau=0.2@dual"),
)
SELDOM = ("sequential", "sequential@dkv", "threshold:tau=0.2@dual", "threshold:tau=0.3+smoothing@dual")
SELDOM += ("credit+localleap+prophet@dual:refresh=2",)  # their forwards are in parts those of others
CHAINS = (("sequential", 1.0), ("lookup", 0.0), ("jacobi:window=4", 0.0), ("sjd:window=4", 1.0), ("recycling", 0.0))
CHAINS += (("layerskip", 0.0),)


def captured(model: LanguageModel) -> LanguageModel:
    """The model with its forwards captured, and no whole steps: see test_captured_step.py."""
    other = traced.captured(model)
    assert isinstance(other.decoder, GraphRunner)
    other.decoder.whole_steps = False
    return other


def counts(model: LanguageModel) -> dict[str, int]:
    assert isinstance(model.decoder, GraphRunner)
    refused = [why for why in model.decoder.counts if why.startswith("refused")]
    assert not refused
    return dict(model.decoder.counts)


def equal(one: Finished, two: Finished) -> None:
    assert all(toys.same(one, row, two, row) for row in range(len(one.nfe)))
    assert np.allclose(one.trace.commit_score, two.trace.commit_score, atol=1e-5)
    assert (one.tokens_fed, one.forward_rows, one.reasons) == (two.tokens_fed, two.forward_rows, two.reasons)


@pytest.mark.parametrize(("family", "spec"), thinned(MASKED, lambda family, spec: spec not in SELDOM))
def test_masked_models_decode_the_same(family: str, spec: str) -> None:
    plain = toys.toy(family)
    other = captured(plain)
    given = toys.prompts([5, 3])
    whole = toys.fill(plain, spec, given, [6, 10])
    for _ in range(2):  # the second request finds the recordings of the first
        equal(whole, toys.fill(other, spec, given, [6, 10]))
    found = counts(other)
    assert found["replayed"] >= 2
    assert found["recorded"] == found["the first of its shape"]


@pytest.mark.parametrize(
    "spec", ["threshold:tau=0.2@dual", "sequential@dkv", "entropy+fixed@prefix", "credit+localleap@dual"]
)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.covers(1)
def test_head_and_confidence_are_part_of_the_graph(
    spec: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "wanted_columns", lambda *_: (None, None))  # as on a GPU, where shapes stay
    plain = toys.toy("dream")
    other = captured(plain)
    seen = list[int]()
    known = DenseDistribution.__init__

    def noted(self: DenseDistribution, *args: Any, **named: Any) -> None:
        seen.append("known" in named)
        known(self, *args, **named)

    monkeypatch.setattr(DenseDistribution, "__init__", noted)
    given = toys.prompts([5, 3])
    whole = toys.fill(plain, spec, given, [6, 10], temperature=temperature)
    assert not any(seen)
    for _ in range(2):
        equal(whole, toys.fill(other, spec, given, [6, 10], temperature=temperature))
    found = counts(other)
    assert sum(seen) >= found["replayed"] > 2


def test_many_logits_are_no_part_of_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each graph would keep memory for all of them."""
    monkeypatch.setattr(predict, "wanted_columns", lambda *_: (None, None))
    monkeypatch.setattr(predict, "_CAPTURED", 1)
    plain = toys.toy("dream")
    other = captured(plain)
    given = toys.prompts([5, 3])
    equal(*(toys.fill(each, "sequential@dual", given, [6, 10]) for each in (plain, other)))
    assert all(len(graph.outputs) == 1 for graph in other.decoder._kept.graphs.values())  # states alone


def test_damaged_weights_are_found_in_captured_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "wanted_columns", lambda *_: (None, None))
    other = captured(toys.toy("llada"))
    toys.fill(other, "sequential@dual", toys.prompts([5, 3]), [6, 10])
    other.decoder.stack.layers[1].down_weight.data[0, 0] = float("nan")
    with pytest.raises(ModelError, match="holds NaN or infinity"):
        toys.fill(other, "sequential@dual", toys.prompts([5, 3]), [6, 10])
    assert counts(other)["replayed"] > 2


def test_layers_that_compute_a_share_run_as_they_come() -> None:
    """The number of computed queries differs from layer to layer, so these forwards are not captured."""
    plain = toys.toy("llada")
    other = captured(plain)
    given = toys.prompts([5, 3])
    whole, again = (toys.fill(model, "threshold:tau=0.2@spa", given, [8, 16]) for model in (plain, other))
    equal(whole, again)
    assert set(counts(other)) == {"a cache of others"}


def test_guidance_and_ends_decode_the_same() -> None:
    plain = toys.toy("dream", sharp=1.0)
    other = captured(plain)
    given = toys.prompts([4, 6, 3, 5])
    for spec, more in (("threshold:tau=0.3+eos@dual", {"cfg": 1.5}), ("sequential+eos", {"temperature": 0.8})):
        one, two = (toys.fill(each, spec, given, 12, stop_ids=(toys.EOS,), **more) for each in (plain, other))
        equal(one, two)
    assert counts(other)["replayed"] > 5


@pytest.mark.parametrize(("spec", "temperature"), thinned(CHAINS, lambda spec, _: not spec.startswith("sjd")))
def test_autoregressive_models_decode_the_same(spec: str, temperature: float) -> None:
    plain = ar_toys.toy_ar(vocab=11)
    other = captured(plain)
    given = ar_toys.prompts([5, 9], vocab=11)
    new = [12, 40] if spec == "recycling" else [8, 20]  # few of its trees have a shape that comes again
    one, two = (ar_toys.run(each, spec, given, new, temperature=temperature) for each in (plain, other))
    equal(one, two)
    assert (one.trace.drafted, one.trace.accepted) == (two.trace.drafted, two.trace.accepted)
    assert counts(other)["replayed"] >= 2


def test_pictures_decode_the_same() -> None:
    """Images: conditions in place of a prompt, two copies of every row, positions on a grid."""
    plain = picture_toys.toy_pictures(side=4)
    other = captured(plain)
    for spec in ("sequential", "jacobi:window=4"):
        captions = picture_toys.features([3, 2])
        equal(*(picture_toys.draw(each, spec, captions, cfg=2.0) for each in (plain, other)))
    assert counts(other)["replayed"] > 10


def test_rows_that_join_decode_the_same() -> None:
    for plain in (toys.toy("dream"), ar_toys.toy_ar(vocab=11)):
        other = captured(plain)
        found = []
        for each in (plain, other):
            prompts = toys.prompts([4, 7, 3, 5, 6, 9], vocab=11)
            items = [{"input_ids": ids, "max_new_tokens": 3 + 5 * (at % 3)} for at, ids in enumerate(prompts)]
            spec = "threshold:tau=0.2@dual" if plain.decoding_config.masked else "lookup"
            served = Model(each).serve_batch(iter(items), batch_size=3, sampler=spec)
            found.append({row.index: (row.tokens, row.nfe, row.finish) for row in served})
            assert served.waits is None
        assert found[0] == found[1]
        assert counts(other)["replayed"] > 4


def test_shapes_do_not_grow_with_the_text() -> None:
    for new in (10, 30):
        other = captured(ar_toys.toy_ar(vocab=11))
        ar_toys.run(other, "sequential", ar_toys.prompts([5], vocab=11), new)
        assert counts(other)["recorded"] == 1


def test_a_batch_whose_rows_leave_one_by_one_takes_few_recordings() -> None:
    other = captured(replace(ar_toys.toy_ar(vocab=11)))
    given = ar_toys.prompts([5] * 8, vocab=11)
    ar_toys.run(other, "sequential", given, [5, 10, 15, 20, 25, 30, 35, 40])
    assert counts(other)["recorded"] == 4  # of 8, 4, 2 and 1 rows
