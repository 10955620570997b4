"""Whole steps as graphs: the tokens of steps without, a graph for each way to decide, and reasons why there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel
from pardec.samplers.events import Finished
from pardec.samplers.host_transfer import upload
from pardec.samplers.masked import predict
from pardec.samplers.masked.logits.credit import Credit
from pardec.samplers.masked.select.threshold import Threshold
from pardec.samplers.traits import Trait
from tests.models.traced import captured
from tests.samplers import toys

NEW = [12, 16]  # tokens per row: blocks that come again, and a row that leaves before the other


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "wanted_columns", lambda *_: (None, None))  # shapes stay the same


def decoded(model: LanguageModel, spec: str, **options: Any) -> Finished:
    return toys.fill(model, spec, toys.prompts([5, 3]), options.pop("new", NEW), **options)


def equal(one: Finished, two: Finished) -> None:
    assert np.array_equal(one.tokens, two.tokens)
    assert np.array_equal(one.trace.commit_step, two.trace.commit_step)
    assert np.allclose(one.trace.commit_score, two.trace.commit_score, atol=1e-5)
    assert (one.nfe, one.tokens_fed, one.trace.clocks) == (two.nfe, two.tokens_fed, two.trace.clocks)


def steps(model: LanguageModel) -> dict[str, int]:
    found: dict[str, int] = dict(model.decoder.step_counts)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    ("family", "spec"),
    [
        ("llada", "threshold:tau=0.2"),
        ("dream", "threshold:tau=0.2@dual"),
        ("llada", "sequential@prefix:refresh=3"),
        ("dream", "factor@dkv"),
        ("llada", "entropy_bound@dual"),
        ("sdar", "entropy_threshold@dual"),
        ("llada", "entropy_threshold:floor=linear@dual"),
        ("dream", "fixed:steps=6@dual"),
        ("llada", "credit+localleap+threshold:tau=0.2@dual"),
        ("dream", "credit:free=true+margin+threshold:tau=0.2@dual"),
        ("llada", "leftmost+sequential"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.covers(1)
def test_tokens_are_those_of_steps_without_graphs(family: str, spec: str, temperature: float) -> None:
    plain = toys.toy(family)
    other = captured(plain)
    options: dict[str, Any] = {"temperature": temperature, "top_k": 8} if temperature else {}
    expected = decoded(plain, spec, **options)
    equal(expected, decoded(other, spec, **options))
    first = steps(other)
    assert set(first) == {"the first of its shape", "recorded", "replayed"}
    equal(expected, decoded(other, spec, **options))  # finds the graphs, and the memory, of the first request
    found = steps(other)
    assert found["the first of its shape"] == first["the first of its shape"]
    assert found["replayed"] > found["the first of its shape"]


def test_requests_at_the_same_time_have_memory_of_their_own() -> None:
    from pardec.samplers import registry
    from pardec.samplers.masked.loop import MaskedLoop

    plain = toys.toy("llada")
    other = captured(plain)
    prompts = [toys.prompts([5, 3], seed=seed) for seed in (0, 1)]
    expected = [toys.fill(plain, "threshold:tau=0.2@dual", given, NEW) for given in prompts]
    loops = []
    for given in prompts:
        rows = [[*prompt, *[toys.MASK] * new] for prompt, new in zip(given, NEW, strict=True)]
        asked = toys.request(rows, [len(prompt) for prompt in given])
        loops.append(MaskedLoop(other, registry.resolve("threshold:tau=0.2@dual"), asked))
    while any(len(loop.canvas.rows) for loop in loops):
        for loop in loops:
            if len(loop.canvas.rows):
                loop.step()
                assert list(loop.retire()) is not None
    for one, loop in zip(expected, loops, strict=True):
        equal(one, loop.finished())
        loop.close()
    assert steps(other)["replayed"] > 4


def test_rows_that_join_find_their_tokens_in_memory() -> None:
    from pardec.api import Model

    plain = toys.toy("dream")
    found = []
    for each in (plain, other := captured(plain)):
        items = [
            {"input_ids": ids, "max_new_tokens": 4 + 4 * (at % 3)}
            for at, ids in enumerate(toys.prompts([4, 7, 3, 5, 6, 9]))
        ]
        served = Model(each).serve_batch(iter(items), batch_size=3, sampler="threshold:tau=0.2@dual", temperature=0.7)
        found.append({row.index: (row.tokens, row.nfe) for row in served})
    assert found[0] == found[1]
    assert steps(other)["replayed"] > 4


def test_arguments_have_graphs_of_their_own() -> None:
    """The same shapes with another rule, temperature, filter or mask id do not replay the graph of the first."""
    plain = toys.toy("llada")
    other = captured(plain)
    for spec, options in (
        ("threshold:tau=0.2@dual", {}),
        ("threshold:tau=0.5@dual", {}),
        ("margin+threshold:tau=0.2@dual", {}),
        ("threshold:tau=0.2@dual", {"temperature": 0.7}),
        ("threshold:tau=0.2@dual", {"temperature": 1.3}),
        ("threshold:tau=0.2@dual", {"temperature": 1.3, "top_k": 3}),
    ):
        before = steps(other).get("recorded", 0)
        equal(decoded(plain, spec, **options), decoded(other, spec, **options))
        assert steps(other)["recorded"] > before
    masked = [replace(each, decoding_config=replace(each.decoding_config, mask_id=toys.EOS)) for each in (plain, other)]
    before = steps(other)["recorded"]
    given = [[*row, *[toys.EOS] * 12] for row in toys.prompts([5, 3])]
    one, two = (toys.run(each, "threshold:tau=0.2@dual", toys.request(given, [5, 3])) for each in masked)
    equal(one, two)
    assert steps(other)["recorded"] > before


@pytest.mark.parametrize(
    ("spec", "options", "reason"),
    [
        ("threshold:tau=0.3@dual", {"cfg": 1.5}, "reads or changes logits"),
        ("threshold:tau=0.3@dual", {"repetition_penalty": 1.3}, "reads or changes logits"),
        ("threshold:tau=0.3@dual", {"logprobs": 1}, "between forward and commit"),
        ("threshold:tau=0.3+smoothing@dual", {}, "changes the forward"),
        ("threshold:tau=0.3+wino@dual", {}, "between forward and commit"),
        ("threshold:tau=0.3+prophet@dual", {}, "between forward and commit"),
        ("threshold:tau=0.3,relax=0.3@dual", {}, "threshold needs the host"),
        ("fixed:order=random@dual", {}, "fixed needs the host"),
        ("density+fixed@dual", {}, "density needs the host"),
        ("dream threshold:tau=0.3@dual:reference=true", {}, "a part of the block"),
    ],
)
def test_what_needs_the_host_says_so_and_runs_without(spec: str, options: dict[str, Any], reason: str) -> None:
    family, _, spec = spec.rpartition(" ")
    plain = toys.toy(family or "llada")
    other = captured(plain)
    equal(decoded(plain, spec, **options), decoded(other, spec, **options))
    assert [why for why in steps(other) if reason in why], steps(other)
    assert reason in other.decoder.describe()  # type: ignore[attr-defined]


def test_a_stage_that_reads_the_host_although_it_says_it_does_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    select = Threshold.select

    def counting(self: Threshold, proposal: Any, canvas: Any, state: Any) -> Any:
        least = np.full(len(canvas.nfe), self.tau, np.float32)
        return select(self, proposal, canvas, state) & (proposal.score >= upload(least, proposal.score.device)[:, None])

    monkeypatch.setattr(Threshold, "select", counting)
    plain = toys.toy("llada")
    other = captured(plain)
    equal(decoded(plain, "threshold:tau=0.2@dual"), decoded(other, "threshold:tau=0.2@dual"))
    found = steps(other)
    assert "refused: a stage reads nfe of the canvas, which only the host has" in found
    assert "replayed" not in found


def test_what_a_stage_remembers_is_replayed_with_new_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage whose arrays were captured as they were the first time would decay its credit at the wrong steps."""
    assert Trait.NEEDS_NO_HOST in Credit().provides
    plain = toys.toy("llada")
    expected = decoded(plain, "credit:free=true+threshold:tau=0.2@dual")
    monkeypatch.setattr(Credit, "prepare", lambda *_: None)  # nothing is counted
    other = captured(plain)
    found = decoded(other, "credit:free=true+threshold:tau=0.2@dual")
    assert not np.allclose(found.trace.commit_score, expected.trace.commit_score, atol=1e-5)


def test_damaged_weights_are_named() -> None:
    other = captured(toys.toy("llada"))
    decoded(other, "sequential@dual")
    other.decoder.stack.layers[1].down_weight.data[0, 0] = float("nan")  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="holds NaN or infinity"):
        decoded(other, "sequential@dual")
    assert steps(other)["replayed"] > 4


def test_many_logits_are_no_part_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "_CAPTURED", 1)
    other = captured(toys.toy("llada"))
    decoded(other, "sequential@dual")
    assert set(steps(other)) == {"there are too many logits"}


def test_memory_is_handed_on_and_counted() -> None:
    other = captured(toys.toy("llada"))
    decoded(other, "sequential@dual")
    memories: Any = other.decoder.memories  # type: ignore[attr-defined]
    held = memories.nbytes
    assert held > 0
    decoded(other, "sequential@dual")
    assert memories.nbytes == held
    assert other.decoder.nbytes >= held  # type: ignore[attr-defined]


def test_on_a_cpu_there_is_nothing_to_capture() -> None:
    from pardec.samplers import registry
    from pardec.samplers.masked.loop import MaskedLoop

    rows = [[*prompt, *[toys.MASK] * 8] for prompt in toys.prompts([5])]
    loop = MaskedLoop(toys.toy("llada"), registry.resolve("threshold@dual"), toys.request(rows, [5]))
    assert loop.captured is None
    loop.close()
    assert torch.get_default_device().type == "cpu"
