"""Notes on drafters that read a part of the target's K/V: how far their distributions are from the target's."""

from __future__ import annotations

from typing import Any

import pytest

from pardec.samplers import registry
from pardec.samplers.speculative.contracts import Draft, TargetDistributions, Uniforms, Verdict


class Ratios:
    """Notes how far each tested node's distribution is from the target's."""

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
