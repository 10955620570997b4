"""Seeded Jacobi iterations: the text of sequential sampling with the same noise, so the target's distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from pardec.samplers.ops.distribution import filter_logits
from pardec.samplers.rng import Keyed
from tests.samplers.ar_toys import logits, plain_greedy, prompts, rows, run, toy_ar
from tests.samplers.joint_distributions import WORLDS, measure, worst

GIVEN = prompts((3, 6, 1, 9, 4), vocab=6, seed=1)
NEW = (16, 9, 12, 1, 14)


def sampled(model: LanguageModel, prompt: list[int], new: int, seed: int, temperature: float, top_k: int) -> list[int]:
    """One token after the other by whole forwards: argmax of the log-probabilities plus the noise of its position."""
    text = list(prompt)
    for _ in range(new):
        raw = logits(model, [text])[:, -1:]
        distribution = filter_logits(raw, temperature=temperature, top_k=top_k, top_p=None, order="top_k")[
            0, 0
        ].double()
        at, first = torch.tensor([[len(text)]]), np.zeros(1, dtype=np.int64)
        u = Keyed((seed,)).uniform(first, first, at, "match", model.vocab_size)[0, 0]
        text.append(int((distribution.log_softmax(-1) - (-u.log()).log()).argmax()))
    return text


@pytest.mark.parametrize("window", [2, 5, 16])
@pytest.mark.parametrize("rest", ["init=repeat", "init=prompt", "policy=block,init=ngram", "init=random"])
@pytest.mark.covers(1)
def test_the_fixed_point_is_sequential_sampling_with_the_same_noise(rest: str, window: int) -> None:
    model = toy_ar(3, 6, 2.0)
    options = {"temperature": 0.8, "top_k": 4}
    seeds = range(40, 45)
    done = run(model, f"seeded_jacobi:window={window},{rest}", GIVEN, NEW, seeds=seeds, **options)  # type: ignore[arg-type]
    for prompt, new, seed, text in zip(GIVEN, NEW, seeds, rows(done), strict=True):
        assert text == sampled(model, prompt, new, seed, 0.8, 4)
    assert sum(done.nfe) < sum(NEW)


def test_next_guesses_are_the_seeded_draws() -> None:
    """Argmax guesses would be accepted too; samples with the same noise are accepted more often."""
    model, given = toy_ar(1, 6, 1.0), [[1, 2]] * 60
    seeded = run(model, "seeded_jacobi:window=8,init=repeat", given, 30, temperature=1.0)
    fresh = run(model, "jacobi:window=8,init=repeat+match", given, 30, temperature=1.0)
    assert sum(seeded.nfe) < 0.95 * sum(fresh.nfe)


def test_it_brings_its_acceptance_and_takes_no_other() -> None:
    for sampling in (False, True):
        made = registry.resolve("seeded_jacobi:window=4", "ar", sampling=sampling)
        assert str(made.spec).endswith("+match:noise=seeded")
        assert made.exact == ("distribution" if sampling else "greedy")
    for other in ("match", "speculative", "greedy"):
        with pytest.raises(SpecError, match="only with seeded samples"):
            registry.resolve(f"seeded_jacobi+{other}", "ar", sampling=True)
    assert registry.resolve("seeded_jacobi:policy=block,exit_tokens=2", "ar", sampling=True).exact == "relaxed"


def test_at_temperature_0_it_is_jacobi() -> None:
    model = toy_ar(2, 6, 1.5)
    done = run(model, "seeded_jacobi:window=6", GIVEN, NEW)
    assert rows(done) == [plain_greedy(model, *each) for each in zip(GIVEN, NEW, strict=True)]
    assert done.nfe == run(model, "jacobi:window=6", GIVEN, NEW).nfe


@pytest.mark.slow  # test_exact_joint.py has the default settings
def test_the_joint_distribution_is_the_target_s() -> None:
    assert worst(measure("seeded_jacobi:window=6,init=repeat", WORLDS["3 tokens, length 6"], 6000)) < 3.5


def test_mutation_noise_that_changes_from_round_to_round_converges_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays exact, since `match` is, but it no longer is a fixed-point iteration."""
    from pardec.samplers.speculative.contracts import RoundUniforms as Round

    model, given = toy_ar(1, 6, 1.0), [[1, 2]] * 60
    right = run(model, "seeded_jacobi:window=8,init=repeat", given, 30, temperature=1.0)
    noise = Round.noise

    def unfixed(self: Round, positions: torch.Tensor, purpose: str, width: int, *, fixed: bool = False) -> torch.Tensor:
        return noise(self, positions, purpose, width)

    monkeypatch.setattr(Round, "noise", unfixed)
    wrong = run(model, "seeded_jacobi:window=8,init=repeat", given, 30, temperature=1.0)
    assert rows(wrong) != rows(right)
    assert sum(wrong.nfe) > 1.05 * sum(right.nfe)
