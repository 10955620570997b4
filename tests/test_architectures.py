"""benchmarks/architectures.py on a few architectures of transformers; on all with -m slow."""

from __future__ import annotations

from typing import Any

import architectures
import pytest

FEW = {"llama4_text": "equal", "gpt2": "equal", "mamba": "refused", "gpt_oss": "refused"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FEW)
def test_a_model_gives_its_own_greedy_tokens_or_is_refused(name: str) -> None:
    outcome = architectures.check(name)
    assert outcome.result == FEW[name], outcome
    assert bool(outcome.why) == (outcome.result == "refused")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_no_architecture_crashes_or_gives_other_tokens(name: str) -> None:
    assert architectures.check(name).result in ("equal", "refused")


def test_what_goes_wrong_inside_a_foreign_model_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    from pardec.models.hf.causal_lm import HFAdapter

    def broken(*_: Any) -> Any:
        raise AttributeError("no such output")

    monkeypatch.setattr(HFAdapter, "_run", broken)
    outcome = architectures.check("gpt2")
    assert (outcome.result, outcome.why) == ("refused", "run with pardec's attention, it fails: no such output")
