"""A plain request runs no code of optional features, and a request with a feature runs its code."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import pardec
from pardec.samplers import registry
from pardec.samplers.request import Allowed
from pardec.samplers.speculative.contracts import Draft, Verdict
from pardec.samplers.speculative.features import without_excluded
from pardec.samplers.speculative.loop import VerifyLoop
from pardec.samplers.speculative.ops.verification import Exact, judge, judge_siblings

from ..ar_toys import prompts, request, toy_ar
from ..handmade_drafts import Given, distributions, tree

VOCAB = 11
SAMPLERS = str(Path(pardec.__file__).resolve().parents[1] / "samplers") + "/"
FEATURES = (
    "batching.py",
    "endings.py",
    "logprobs.py",
    "prefix_reuse.py",
    "request.py",
    "ops/allowed.py",
    "ops/distribution.py",
    "ops/penalties.py",
    "speculative/features.py",
    "speculative/forward_features.py",
    "speculative/ops/processing.py",
    "speculative/probe_nodes.py",
    "speculative/sparse_kv.py",
)


def run_files(spec: str, rows: int = 1, **options: Any) -> Counter[str]:
    """Calls by file of the rounds after the first one, made between the events of retired rows."""
    model = toy_ar(1, VOCAB)
    given = prompts((6,) * rows, vocab=VOCAB)
    asked = request(given, 20, **options)
    loop = VerifyLoop(model, registry.resolve(spec, "ar", sampling=asked.temperature > 0), asked)
    calls = Counter[str]()

    def on_call(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and (file := frame.f_code.co_filename).startswith(SAMPLERS):
            calls[file.removeprefix(SAMPLERS)] += 1

    loop.round()
    for _ in range(3):
        sys.setprofile(on_call)
        try:
            loop.round()
        finally:
            sys.setprofile(None)
    loop.close()
    return calls


@pytest.mark.parametrize("spec", ["sequential", "lookup", "lookup:k=3,prefer=first", "recycling", "lookahead"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_plain_requests_run_no_feature(spec: str, rows: int, temperature: float) -> None:
    calls = run_files(spec, rows, temperature=temperature)
    assert not [file for file in FEATURES if file in calls]


def test_plain_rounds_make_few_calls() -> None:
    for spec in ("sequential", "lookup"):
        calls = run_files(spec)
        assert sum(calls.values()) / 3 <= 80
        assert len(calls) <= 14


class Ends:
    """A stop condition that never ends a row."""

    def first(self, ids: Sequence[int], known: int = 0) -> None:
        return None


@pytest.mark.parametrize(
    ("spec", "options", "file"),
    [
        ("lookup", {"top_p": 0.5}, "ops/distribution.py"),
        ("lookup", {"temperature": 0.5}, "ops/distribution.py"),
        ("lookup", {"repetition_penalty": 1.3}, "speculative/ops/processing.py"),
        ("lookup", {"min_new_tokens": 3, "stop_ids": (2,)}, "ops/penalties.py"),
        ("lookup", {"processors": (lambda ids, scores: scores,)}, "speculative/ops/processing.py"),
        (
            "lookup",
            {"allowed": Allowed(torch.ones(1, VOCAB, dtype=torch.bool), (torch.zeros(26, dtype=int),))},
            "ops/allowed.py",
        ),
        ("lookup", {"logprobs": 2}, "logprobs.py"),
        ("lookup", {"stops": (Ends(),)}, "endings.py"),
        ('lookup+reflective:probe=""', {}, "speculative/features.py"),
        ("lookup+typical", {"temperature": 1.0}, "speculative/features.py"),
        ("lookup@streaming:window=8", {}, "speculative/features.py"),
        ("lookup+momentum", {}, "speculative/ops/processing.py"),
        ("earlyexit:layers=1", {}, "speculative/forward_features.py"),
    ],
)
def test_requests_run_the_features_they_ask_for(spec: str, options: dict[str, Any], file: str) -> None:
    assert run_files(spec, **options)[file]


@pytest.mark.parametrize("by_position", [True, False])
def test_preaccepted_tokens_stay_outside_of_later_filters_unless_constraints_read_the_tokens_before(
    by_position: bool,
) -> None:
    """A chain 1 2 of which the target now excludes both; 1 was accepted in an earlier round, 2 is a relaxed draft."""
    p = torch.tensor([[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]])
    marks = torch.tensor([[False, True, False]])
    draft = tree(torch.tensor([[0, 1, 2]]), None, preaccepted=marks)

    def all_of_it(*_: Any) -> Verdict:
        return Verdict(torch.tensor([[0, 1, 2]]), torch.tensor([2]), torch.tensor([2]))

    accept = without_excluded(all_of_it, by_position=by_position)
    made = accept(draft, distributions(p), Given(torch.zeros(1, 3)), None)  # type: ignore[arg-type]
    assert made.count.tolist() == [1 if by_position else 0]
    assert made.next.tolist() == [0]


def test_the_exact_rule_tests_no_preaccepted_token() -> None:
    """A token of probability 0 in a tree and in a chain with distributions, whose uniforms are all 1."""
    p = torch.full((1, 3, 2), 0.5)
    p[0, 0] = torch.tensor([1.0, 0.0])
    q = torch.full((1, 3, 2), 0.5)
    marks = torch.tensor([[False, True, False]])
    for given in (None, marks):
        draft = tree(torch.tensor([[0, 1, 1]]), [-1, 0, 1], q, **({} if given is None else {"preaccepted": given}))
        made = judge_siblings(draft, p, Given(torch.ones(1, 3)), Exact())  # type: ignore[arg-type]
        chain = Draft(draft.tokens, draft.sizes, draft.base, q=q, preaccepted=given)
        for verdict in (made, judge(chain, p, Given(torch.ones(1, 3)))):  # type: ignore[arg-type]
            assert verdict.count.tolist() == [0 if given is None else 1]
