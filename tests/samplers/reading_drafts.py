"""Shared by the tests of caches and drafters that read a part of the target's K/V."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pardec.models.caches.compact_cache import CompactCache
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from pardec.samplers.speculative.contracts import Draft, TargetDistributions, Uniforms, Verdict
from tests.reference.naive_window import naive
from tests.samplers.ar_toys import prompts, rows, run, toy_ar
from tests.samplers.joint_distributions import SMALL, WORLDS, drafting, measure

VOCAB = 8
GIVEN, NEW = prompts((3, 6, 1, 9, 40), vocab=VOCAB), (20, 12, 30, 25, 20)


def target(dtype: torch.dtype = torch.float32) -> LanguageModel:
    return toy_ar(3, VOCAB, 1.5, layers=3, dtype=dtype)


class Ratios:
    """Records how far each tested node's distribution is from the target's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gaps: list[float] = []
        accept = registry.resolve("lookup+speculative", "ar").accept.__class__.accept

        def noted(
            rule: Any, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: Any
        ) -> Verdict:
            verdict = accept(rule, draft, distributions, uniforms, state)
            if draft.q is not None:
                behind = distributions.probs[:, :-1] - draft.q[:, 1:]
                self.gaps.extend(behind[draft.tested[:, 1:]].abs().flatten().tolist())
            return verdict

        monkeypatch.setattr(registry.resolve("lookup+speculative", "ar").accept.__class__, "accept", noted)


def same_window_for_every_drafter(name: str, offsets: str | None) -> Callable[..., None]:
    """Makes a test: drafters keep the tokens of `sequential` with the window cache `name`."""

    @pytest.mark.parametrize("drafter", ["lookup:k=3", "layerskip:k=3+template:widths=2-2-1"])
    def test(drafter: str) -> None:
        """Each query reads its own window, whatever else is fed, as the plain version does."""
        model, cache = target(torch.float64), f"{name}:sink=2,window=6"
        done = run(model, f"{drafter}@{cache}", GIVEN, NEW)
        assert rows(done) == rows(run(model, f"sequential@{cache}", GIVEN, NEW))
        text = rows(done)[1]
        truth = naive(model.decoder, text, 2, 6, offsets)
        assert truth[len(GIVEN[1]) - 1 : -1].argmax(-1).tolist() == text[len(GIVEN[1]) :]

    return test


def accepts_all_with_room(spec: str) -> Callable[..., None]:
    """Makes a test: every draft is accepted if the part `{read}` of the K/V, which `spec` reads, holds all text."""

    @pytest.mark.parametrize("read", ["retrieval:budget=66,chunk=11,refresh=1", "streaming:sink=4,window=60"])
    def test(read: str, monkeypatch: pytest.MonkeyPatch) -> None:
        ratios = Ratios(monkeypatch)
        with drafting(VOCAB):
            done = run(target(torch.float64), spec.format(read=read), GIVEN, NEW, temperature=1.0)
        assert done.trace.accepted == done.trace.drafted
        assert ratios.gaps
        assert max(ratios.gaps) < 1e-6  # probabilities are float32

    return test


def survives_garbage(name: str) -> Callable[..., None]:
    """Makes a test: random numbers in the compact cache of the drafter `name` only lower the acceptance."""

    def test(monkeypatch: pytest.MonkeyPatch) -> None:
        fill = CompactCache.fill
        rng = torch.Generator().manual_seed(0)

        def spoiled(compact: Any, *rest: Any) -> None:
            fill(compact, *rest)
            for store in (*compact.k, *compact.v):
                store.normal_(std=3, generator=rng)

        monkeypatch.setattr(CompactCache, "fill", spoiled)
        with drafting(VOCAB):
            done = run(target(), SMALL[name], GIVEN, NEW)
        assert rows(done) == rows(run(target(), "sequential", GIVEN, NEW))
        for reading in measure(f"{SMALL[name]}+speculative", WORLDS["5 tokens, length 4"], 600):
            assert reading.z < 4

    return test
