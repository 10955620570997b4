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
from pardec.samplers.speculative.loop import VerifyLoop

from ..ar_toys import prompts, request, toy_ar

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
