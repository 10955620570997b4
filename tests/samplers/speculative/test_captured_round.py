"""Verified chains as graphs: the tokens and counts of rounds without, one copy per round, and reasons for none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec.api import Model
from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from pardec.samplers.events import Finished
from pardec.samplers.host_transfer import upload
from pardec.samplers.speculative import captured_round
from pardec.samplers.speculative.accept.greedy import Greedy
from pardec.samplers.speculative.captured_round import CapturedRound
from pardec.samplers.speculative.contracts import Draft, RoundResult
from pardec.samplers.speculative.loop import VerifyLoop, decode
from tests.models.traced import captured
from tests.samplers import ar_toys
from tests.samplers.fake_draft_model import NEW, RAGGED, named, near, target

EAGLE = "eagle:name=tiny-llama-eagle,k=3"
MTP = "mtp:name=tiny-llama-mtp,k=3"
AUTO = f'auto:model="{EAGLE}",copy="lookup:k=7",measured=false'
PROMPTS = ["Tom has 8 cups. How many cups?", "add 3 4", "Copy: a b c d a b c"]


def decoded(model: LanguageModel, spec: str, **options: Any) -> Finished:
    with named(near=near()):
        return ar_toys.run(model, spec, RAGGED, options.pop("new", NEW), **options)


def equal(one: Finished, two: Finished) -> None:
    assert np.array_equal(one.tokens, two.tokens)
    assert np.array_equal(one.trace.commit_step, two.trace.commit_step)
    assert np.allclose(one.trace.commit_score, two.trace.commit_score, atol=5e-5)
    assert (one.nfe, one.tokens_fed, one.reasons) == (two.nfe, two.tokens_fed, two.reasons)
    assert (one.trace.accepted, one.trace.drafted) == (two.trace.accepted, two.trace.drafted)


def steps(model: Any) -> dict[str, int]:
    found: dict[str, int] = dict(model.decoder.step_counts)
    return found


CHAINS = ("sequential", "lookup:k=5", "suffix:k=4", "copyspec", "model:name=near,k=3", "pearl:name=near,k=3")
CHAINS += tuple(f"model:name=near,k=4+{length}" for length in ("heuristic", "unsure:tau=0.6", "calibrated:h=0.5"))


@pytest.mark.parametrize("spec", CHAINS)
def test_ragged_rows_decode_as_without_graphs(spec: str) -> None:
    other = captured(target())
    expected = decoded(target(), spec)
    equal(expected, decoded(other, spec))
    first = steps(other)
    assert set(first) == {"the first of its shape", "recorded", "replayed"}
    equal(expected, decoded(other, spec))  # finds the graphs, and the memory, of the first request
    found = steps(other)
    assert found["the first of its shape"] == first["the first of its shape"]
    assert found["replayed"] > first["replayed"]


@pytest.mark.parametrize(
    "spec",
    ["sequential", "lookup:k=4", "model:name=near,k=3", "pearl:name=near,k=3", "model:name=near,k=4+unsure:tau=0.6"],
)
@pytest.mark.parametrize(
    "options",
    [{"temperature": 1.0}, {"temperature": 0.7, "top_k": 3}, {"temperature": 1.2, "top_p": 0.8}, {"top_k": 2}],
)
@pytest.mark.covers(1)
def test_draws_are_those_of_rounds_without_graphs(spec: str, options: dict[str, Any]) -> None:
    other = captured(target())
    for seed in (0, 50):  # the second finds the graphs of the first
        seeds = range(seed, seed + len(RAGGED))
        equal(decoded(target(), spec, seeds=seeds, **options), decoded(other, spec, seeds=seeds, **options))
    assert set(steps(other)) == {"the first of its shape", "recorded", "replayed"}
    before = steps(other)["recorded"]
    decoded(other, spec, **{**options, "temperature": 0.5})
    assert steps(other)["recorded"] > before  # another temperature has graphs of its own


@pytest.mark.parametrize(
    ("spec", "temperature"),
    [
        (EAGLE, 0.0),
        pytest.param(EAGLE, 0.8, marks=pytest.mark.slow),
        pytest.param(MTP, 0.0, marks=pytest.mark.slow),
        (MTP, 0.8),
        pytest.param(AUTO, 0.0, marks=pytest.mark.slow),
        (AUTO, 0.8),
        ("model:name=tiny-llama-draft,k=3", 0.0),
        ("diffusion:name=tiny-dream,k=6,step=3", 0.8),
        ("auto:measured=false", 0.0),
        ("lookup", 0.0),
    ],
)
def test_embedded_models_decode_as_without_graphs(spec: str, temperature: float) -> None:
    plain = pardec.load("tiny-llama", device="cpu", dtype="float32")
    other = Model(captured(plain.language_model))
    options: dict[str, Any] = {"sampler": spec, "max_new_tokens": 16, "temperature": temperature, "seed": 5}
    for stops in ({"stop": [" "]}, {"stop_ids": []}):
        one, two = (model.generate(PROMPTS, **options, **stops) for model in (plain, other))
        assert one.tokens == two.tokens
        assert one.nfe == two.nfe
    assert steps(other.language_model)["replayed"] > 4
    assert "steps: " in two.environment["forwards"]


@pytest.mark.parametrize("spec", ["lookup:k=5", "model:name=near,k=3"])
@pytest.mark.parametrize("end", range(5))
@pytest.mark.covers(1)
def test_a_row_that_ends_within_a_draft_is_cut_there(spec: str, end: int) -> None:
    other = captured(target())
    for _ in range(2):
        equal(decoded(target(), spec, stop_ids=(end,)), decoded(other, spec, stop_ids=(end,)))
    assert steps(other)["replayed"] > 0


def test_tokens_on_the_device_are_those_of_the_host() -> None:
    """Drafting models read the rows' tokens there, and drafts begin with the last one."""
    other, left = captured(target()), 0
    for _ in range(2):
        loop = VerifyLoop(other, registry.resolve("lookup:k=5", "ar"), ar_toys.request(RAGGED, NEW))
        while len(loop.text.rows):
            loop.round()
            text = loop.text
            assert text.last.tolist() == text.host[np.arange(len(text)), text.length - 1].tolist()
            for at, length in enumerate(text.length):
                assert text.tokens[at, :length].tolist() == text.row(at).tolist()
            left += len(list(loop.retire()))
        loop.close()
    assert left == 2 * len(RAGGED)
    assert steps(other)["replayed"] > 4


def test_rows_that_join_find_their_tokens_in_memory() -> None:
    plain = target()
    found = []
    for each in (plain, other := captured(plain)):
        items = [
            {"input_ids": ids, "max_new_tokens": 6 + 3 * (at % 3)}
            for at, ids in enumerate(ar_toys.prompts([4, 7, 3, 5, 6, 9]))
        ]
        served = Model(each).serve_batch(iter(items), batch_size=3, sampler="lookup:k=3")
        found.append({row.index: (row.tokens, row.nfe) for row in served})
    assert found[0] == found[1]
    assert steps(other)["replayed"] > 4


def test_longer_texts_have_graphs_that_read_more_slots() -> None:
    other = captured(target())
    (text,) = ar_toys.rows(ar_toys.run(other, "sequential", [[1, 2, 3]], 260))
    assert ar_toys.is_greedy(target(), text, 3)
    slots = {key[2][0] for key in other.decoder._steps.graphs}  # type: ignore[attr-defined]
    assert slots == {128, 256, None}


@pytest.mark.parametrize(
    ("spec", "options", "reason"),
    [
        ("lookup:k=3", {"repetition_penalty": 1.3}, "changes logits"),
        ("lookup:k=3", {"min_new_tokens": 6}, "changes logits"),
        ("lookup:k=3", {"logprobs": 1}, "log-probabilities are recorded"),
        ("lookup:k=3+typical", {}, "typical needs the host"),
        ("recycling", {}, "recycling does not say that it observes tokens alone"),
        ("lookup:k=3@kivi", {}, "a cache stage"),
        (f"{EAGLE}+beam:beams=2,nodes=4", {}, "the draft is no chain"),
    ],
)
def test_what_is_not_captured_says_so_and_runs_without(spec: str, options: dict[str, Any], reason: str) -> None:
    plain = pardec.load("tiny-llama", device="cpu", dtype="float32")
    other = Model(captured(plain.language_model))
    options = {"sampler": spec, "max_new_tokens": 8, "seed": 3, **options}
    one, two = (model.generate(PROMPTS, **options) for model in (plain, other))
    assert one.tokens == two.tokens
    assert [why for why in steps(other.language_model) if reason in why], steps(other.language_model)
    assert "replayed" not in steps(other.language_model)
    assert reason in two.environment["forwards"]


def test_a_draft_of_sampled_and_known_tokens_is_not_captured() -> None:
    sizes, tokens = np.full(1, 2), torch.zeros(1, 2, dtype=torch.int64)
    draft = Draft(tokens, sizes, sizes, q=torch.ones(1, 2, 5), is_point_mass=tokens > 0)
    assert captured_round._unsuited(draft) == "the draft has sampled tokens and known ones"


def test_many_logits_are_no_part_of_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_round, "_MOST", 4)  # less than one node has
    other = captured(target())
    equal(decoded(target(), "lookup:k=3"), decoded(other, "lookup:k=3"))
    assert set(steps(other)) == {"there are too many logits"}


def test_an_acceptance_that_reads_the_host_although_it_says_it_does_not_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accept = Greedy.accept

    def counting(self: Greedy, draft: Any, distributions: Any, uniforms: Any, state: Any) -> Any:
        upload(np.zeros(len(draft.tokens)), draft.tokens.device).numpy()
        return accept(self, draft, distributions, uniforms, state)

    monkeypatch.setattr(Greedy, "accept", counting)
    other = captured(target())
    equal(decoded(target(), "lookup:k=3"), decoded(other, "lookup:k=3"))
    assert "replayed" not in steps(other)
    assert [why for why in steps(other) if why.startswith("refused")], steps(other)


def test_distributions_of_a_captured_round_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RoundResult] = []
    run = CapturedRound.run

    def noted(self: CapturedRound, draft: Any) -> RoundResult | None:
        if (outcome := run(self, draft)) is not None:
            seen.append(outcome)
        return outcome

    monkeypatch.setattr(CapturedRound, "run", noted)
    decoded(captured(target()), "lookup:k=3")
    with pytest.raises(RuntimeError, match="not kept, and a stage reads 'raw'"):
        _ = seen[0].distributions.raw


def test_damaged_weights_are_named() -> None:
    other = captured(ar_toys.toy_ar(0, 5, 3.0))
    decoded(other, "lookup:k=3")
    replayed = steps(other)["replayed"]
    rounds = decode(other, registry.resolve("lookup:k=3", "ar"), ar_toys.request(RAGGED, NEW))
    for _ in range(4):
        next(rounds)
    other.decoder.stack.layers[1].down_weight.data[0, 0] = float("nan")  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="holds NaN or infinity"):
        list(rounds)
    assert steps(other)["replayed"] > replayed
