"""`Model.check` and `pardec check`: equal tokens, why they part, acceptance, samplers that are broken on purpose."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file

import pardec
from pardec.check import partings
from pardec.models.errors import SpecError
from pardec.models.files.catalog import DRAFTERS
from pardec.samplers.masked.cache.block import BlockCache
from pardec.samplers.masked.contracts import QuerySpec
from pardec.samplers.speculative.accept.greedy import Greedy
from pardec.samplers.speculative.accept.speculative import Speculative
from pardec.samplers.speculative.contracts import Verdict
from pardec.samplers.speculative.forward import VerifyForward
from tests.samplers.toys import toy

Cli = Callable[..., tuple[int, str, str]]
DRAFT = "model:name=tiny-llama-draft,k=4"
RAGGED = ["Once", "Tom has 8 cups. He loses 3. How many cups does Tom have now?", "The weather is"]


@cache
def load(name: str = "tiny-llama", dtype: str = "float32") -> pardec.Model:
    return pardec.load(name, device="cpu", dtype=dtype)


# --- samplers that are right ---


@pytest.mark.parametrize("spec", ["lookup", f"{DRAFT}+beam:beams=2,nodes=5", "eagle:name=tiny-llama-eagle,k=5"])
def test_an_exact_drafter_is_equal_in_ragged_rows_with_stop_strings(spec: str) -> None:
    found = load().check(spec, RAGGED, max_new_tokens=24, stop=["answer", "5 9"], pairs=1)
    assert (found.rows, found.equal, found.partings, found.faults) == (3, 3, [], [])
    assert found.promise == "greedy"
    assert found.reference == "sequential"
    assert found.furthest < 1e-4


def test_acceptance_by_position_counts_rounds_and_tokens() -> None:
    model, settings = load(), {"max_new_tokens": 24, "stop_ids": []}
    found = model.check(DRAFT, RAGGED, pairs=1, **settings)
    trace = model.generate(RAGGED, sampler=DRAFT, **settings).trace
    pairs = [(d, a) for row in zip(trace.drafted, trace.accepted, strict=True) for d, a in zip(*row, strict=True) if d]
    for number, (accepted, drafted) in enumerate(found.drafts.positions, 1):
        assert drafted == sum(depth >= number for depth, _ in pairs)
        assert accepted == sum(count >= number for _, count in pairs)
    assert 1 < found.drafts.tokens_per_round[0] <= 5


def test_a_drafter_s_card_is_met_on_the_default_prompts() -> None:
    found = load().check("eagle:name=tiny-llama-eagle,k=5", pairs=1)
    assert found.faults == []
    assert found.drafts.expected == 4.395
    assert found.drafts.tokens_per_round[2] > 3.3


def test_a_lossy_acceptance_and_a_lossy_cache_part_by_design() -> None:
    model = load()
    for spec in (f"{DRAFT}+topk:tolerance=9", "sequential@streaming:sink=1,window=4"):
        found = model.check(spec, RAGGED, max_new_tokens=32, pairs=1)
        assert found.promise == "relaxed"
        assert found.equal < 3
        assert {place.cause for place in found.partings} == {"lossy"}
        assert found.faults == []


def test_the_place_and_its_logits_are_those_of_forwards_over_the_text() -> None:
    model = load()
    found = model.check("sequential@streaming:sink=1,window=4", RAGGED, max_new_tokens=32, pairs=1)
    place = found.partings[0]
    result = model.generate(RAGGED[place.row], max_new_tokens=32, sampler="sequential")
    plain = result.tokens[0]
    logprobs = model.logits(result.sequences[:, : result.prompts[0] + place.position])[0, -1].log_softmax(-1)
    first, second = place.tokens
    assert first == plain[place.position] == int(logprobs.argmax())
    assert place.plain is not None
    assert second is not None
    assert place.plain == pytest.approx((float(logprobs[first]), float(logprobs[second])), abs=1e-4)


def test_a_masked_cache_is_compared_with_the_same_sampler_without_it() -> None:
    model = load("tiny-dream")
    found = model.check("threshold:tau=0.6@dual", RAGGED, max_new_tokens=32, pairs=1)
    assert found.reference == "confidence:of=raw+threshold:tau=0.6,fall=0.0,relax=0.0@none"
    assert found.promise == "relaxed"
    assert found.furthest > found.bound
    assert found.faults == []
    assert all(place.cause == "lossy" for place in found.partings)


def test_an_exact_masked_cache_is_equal_and_a_broken_one_is_found() -> None:
    model = pardec.Model(toy("sdar"))
    settings: dict[str, Any] = {"max_new_tokens": 16, "stop_ids": [], "pairs": 1}
    texts = [torch.tensor([3, 1, 4]), torch.tensor([1, 5, 2, 2, 6]), torch.tensor([2])]
    found = model.check("sequential@block", texts, **settings)
    assert (found.promise, found.equal, found.faults) == ("greedy", 3, [])
    assert found.furthest < 1e-4

    def forgets(self: Any, canvas: Any, state: Any) -> QuerySpec:
        state.final = canvas.block_start  # the finished block is not queried again with its final tokens
        return QuerySpec(canvas.block_start, canvas.end)

    with patch.object(BlockCache, "query", forgets):
        broken = model.check("sequential@block", texts, **settings)
    assert broken.furthest > 1e-3
    assert broken.faults


# --- rounding ---


class Noise:
    """Adds noise to the logits of forwards of several positions, as another order of sums does."""

    def __init__(self, size: float) -> None:
        self.size, self.verify = size, VerifyForward.verify

    def __enter__(self) -> None:
        generator = torch.Generator().manual_seed(1)

        def noisy(forward: VerifyForward, draft: Any) -> Any:
            raw, states = self.verify(forward, draft)
            return (raw + self.size * torch.randn(raw.shape, generator=generator) if raw.shape[1] > 1 else raw), states

        self.patch = patch.object(VerifyForward, "verify", noisy)
        self.patch.__enter__()

    def __exit__(self, *error: object) -> None:
        self.patch.__exit__(*error)


def test_noise_as_large_as_rounding_in_bfloat16_is_no_fault_there_and_one_in_float32() -> None:
    texts = ["Once", "list", "The weather is", "x", "Ann", "add"]
    causes = {}
    for dtype in ("bfloat16", "float32"):
        with Noise(0.05):
            found = load(dtype=dtype).check("lookup", texts, max_new_tokens=40, stop_ids=[], pairs=1)
        assert found.equal < len(texts)
        causes[dtype] = {place.cause for place in found.partings}
        assert bool(found.faults) == (dtype == "float32")
    assert causes["bfloat16"] <= {"rounding", "tie"}
    assert causes["float32"] == {"fault"}


@pytest.mark.parametrize(
    ("gap", "own", "cause"), [(0.0, 0.0, "tie"), (0.05, -0.02, "rounding"), (0.5, 0.5, "fault"), (0.5, -0.5, "fault")]
)
def test_causes_where_both_decodings_saw_the_same_tokens(gap: float, own: float, cause: str) -> None:
    found, why = partings._of_gap(gap, own, bound=0.1, furthest=1.0)
    assert found == cause
    assert ("accepted" in why) == (own == 0.5)


# --- samplers that are broken ---


def test_an_acceptance_that_takes_a_wrong_token_is_a_fault() -> None:
    accept = Greedy.accept

    def greedy(self: Any, draft: Any, *rest: Any) -> Verdict:
        verdict = accept(self, draft, *rest)
        if draft.width < 3:
            return verdict
        path = torch.arange(draft.width).expand(len(draft.sizes), -1)
        more = torch.minimum(verdict.count + 1, torch.from_numpy(draft.sizes) - 1)
        return replace(verdict, path=path, count=more)

    with patch.object(Greedy, "accept", greedy):
        found = load().check(DRAFT, RAGGED, max_new_tokens=24, pairs=1)
    assert found.faults
    assert "fault" in {place.cause for place in found.partings}


def test_keys_and_values_of_a_wrong_branch_are_a_fault() -> None:
    with patch.object(VerifyForward, "keep_path", lambda *_: None):
        found = load().check(f"{DRAFT}+beam:beams=4,nodes=12", RAGGED, max_new_tokens=48, stop_ids=[], pairs=1)
    assert any("logits differ" in fault for fault in found.faults)
    assert found.furthest > found.bound


def damaged(folder: Path, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Path:
    """A copy of tiny-llama-eagle with other weights."""
    shutil.copytree(DRAFTERS / "tiny-llama-eagle", folder)
    file = folder / "model.safetensors"
    save_file({name: change(name, weight).contiguous() for name, weight in load_file(file).items()}, file)
    return folder


def test_a_drafter_with_a_wrong_norm_is_found_by_its_card(tmp_path: Path) -> None:
    folder = damaged(tmp_path / "norm", lambda name, weight: -weight if name.endswith("norm.weight") else weight)
    found = load().check(f'eagle:name="{folder}",k=5', pairs=1)
    assert found.equal == found.rows  # a bad drafter is slow, never wrong
    assert len(found.faults) == 1
    assert "4.39" in found.faults[0] or "4.40" in found.faults[0]


def test_a_drafter_quantized_to_nothing_is_found_by_the_published_figure(tmp_path: Path) -> None:
    folder = damaged(tmp_path / "nothing", lambda _, weight: (weight / 2).round() * 2)
    model, spec = load(), f'eagle:name="{folder}",k=5'
    (folder / "card.json").unlink()
    few = {"pairs": 1, "max_new_tokens": 24}
    assert not model.check(spec, RAGGED, **few).faults
    assert "the caller" in model.check(spec, RAGGED, **few, expected=4.4).faults[0]


# --- sampled ---


def test_a_sampled_distribution_passes_and_one_that_accepts_every_draft_does_not() -> None:
    model, settings = load(), {"temperature": 1.0, "max_new_tokens": 8, "pairs": 1}
    found = model.check(DRAFT, **settings)
    assert found.promise == "distribution"
    assert found.equal is None
    assert (found.faults, found.test.rows) == ([], 128)
    assert found.test.finds <= 0.4

    def every(self: Any, draft: Any, distributions: Any, uniforms: Any, state: None) -> Verdict:
        path = torch.arange(draft.width).expand(len(draft.sizes), -1)
        count = torch.from_numpy(draft.sizes) - 1
        return Verdict(path, count, distributions.pick.gather(1, count[:, None])[:, 0])

    with patch.object(Speculative, "accept", every):
        broken = model.check(DRAFT, **settings)
    assert broken.test.p < 0.001
    assert "distribution differs" in broken.faults[0]


# --- refusals and the command ---


def test_what_cannot_be_compared_is_refused_by_name() -> None:
    model = load()
    with pytest.raises(SpecError, match="repetition_penalty changes the logits"):
        model.check("lookup", repetition_penalty=1.2)
    with pytest.raises(SpecError, match="check sets logprobs itself"):
        model.check("lookup", logprobs=2)
    with pytest.raises(SpecError, match="list of at least one prompt"):
        model.check("lookup", "Once")
    with pytest.raises(SpecError, match="samples must be a whole number"):
        model.check("lookup", temperature=1.0, samples=2)
    with pytest.raises(SpecError, match="draws vectors"):
        load("tiny-mar").check("mar")


def test_the_command_prints_a_report_or_json_and_fails_with_a_fault(cli: Cli) -> None:
    asked = ("check", "tiny-llama", "-s", "lookup", "-p", "Once", "-n", "16", "--pairs", "1")
    code, out, _ = cli(*asked)
    assert code == 0
    assert "tokens: 1 of 1 rows are equal" in out
    assert out.splitlines()[-1] == "no fault found"
    code, out, _ = cli(*asked, "--json", "--expected", "9")
    document = json.loads(out)
    assert code == 1
    assert document["equal"] == 1
    assert "9.00 by the caller" in document["faults"][0]
