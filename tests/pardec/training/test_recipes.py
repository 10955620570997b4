"""The recipes of three papers, on bigram tables that draft for a small random target, compared by acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pardec.api import Model
from pardec.models.model import LanguageModel
from pardec.training.losses import loss, overlap
from tests.pardec.training import test_losses as losses
from tests.pardec.training import test_states as states
from tests.pardec.training import test_texts as texts
from tests.samplers.ar_toys import logits, prompts, rows, run, toy_ar
from tests.samplers.fake_draft_model import named
from tests.samplers.speculative import test_lenience as lenience

VOCAB, NEW = 8, 24


@dataclass(frozen=True)
class Texts:
    """Positions of texts that a model wrote: the token, the next token, and the model's logits [N, V]."""

    token: Tensor
    label: Tensor
    target: Tensor


@cache
def target(seed: int = 3) -> LanguageModel:
    return toy_ar(seed, VOCAB, 0.6, layers=2)


@cache
def written(count: int, seed: int, by: int = 3) -> Texts:
    """`count` answers of a target, drawn at temperature 1."""
    given = prompts([1] * count, seed=seed, vocab=VOCAB)
    seeds = range(1000 * seed, 1000 * seed + count)
    texts = rows(run(target(by), "sequential", given, NEW, temperature=1.0, seeds=seeds))
    ids = torch.tensor(texts)
    return Texts(ids[:, :-1].flatten(), ids[:, 1:].flatten(), logits(target(by), texts)[:, :-1].flatten(0, 1))


def trained(name: str, texts: Texts, start: Tensor | None = None, steps: int = 150, rate: float = 4.0) -> Tensor:
    """The table [V, V] of logits after each token, after plain gradient descent."""
    table = (torch.zeros(VOCAB, VOCAB) if start is None else start.clone()).requires_grad_()
    function = loss(name)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # of losses that sample
        for _ in range(steps):
            value = function(table[texts.token], texts.target, texts.label).mean()
            (slope,) = torch.autograd.grad(value, table)
            with torch.no_grad():
                table -= rate * slope
    return table.detach()


def acceptance(table: Tensor, texts: Texts) -> float:
    """Mean 1 - TV at positions of texts."""
    return float(overlap(table[texts.token].log_softmax(-1), texts.target.log_softmax(-1)).mean())


def drafter(table: Tensor) -> LanguageModel:
    """A draft model whose logits are the table's row of the last token."""
    model = toy_ar(0, VOCAB, layers=1)
    stack: Any = model.decoder
    with torch.no_grad():
        for weight in stack.parameters():
            if weight.dim() > 1:
                weight.zero_()
        stack.embed.weight[:, :VOCAB] = torch.eye(VOCAB)
        stack.head.weight[:, :VOCAB] = table.T / 4  # the norm makes 4 of 1 in 16 dimensions
    return model


def accepted(table: Tensor, given: Sequence[Sequence[int]]) -> float:
    """The share of accepted draft tokens when the target decodes these prompts."""
    with named(near=drafter(table)):
        done = run(target(), "model:name=near,k=3+speculative", given, NEW, temperature=1.0)
    taken, tested = sum(map(sum, done.trace.accepted)), sum(map(sum, done.trace.drafted))
    return taken / tested


@pytest.mark.seeds("arXiv:2310.08461")
def test_distilling_the_target_s_distribution_raises_acceptance_over_its_tokens_alone() -> None:
    """Same texts, same steps: KL(p || q) and the total variation against the cross-entropy of what was drawn."""
    for name in losses.WORKED:
        losses.test_values_worked_by_hand(name)
    losses.test_the_slope_written_out_is_that_of_autograd("fkl")
    for published in ("linear", "square", "exponential"):
        lenience.test_the_published_rule_by_a_naive_sum(published, 0.3)
    lenience.test_a_point_mass_is_mixed_by_hand()
    lenience.test_each_row_of_a_batch_has_its_own_share_of_the_budget()
    lenience.test_siblings_share_one_mixture(2)
    lenience.test_at_temperature_0_the_likeliest_token_alone_is_accepted()
    lenience.test_with_a_budget_the_distribution_is_that_far_and_acceptance_is_as_much_higher(0.3)
    few, heldout = written(12, 1), written(100, 2)
    found = {name: acceptance(trained(name, few), heldout) for name in ("ce", "fkl", "tvd")}
    assert found["fkl"] > found["ce"] + 0.02
    assert found["tvd"] > found["ce"] + 0.02


@pytest.mark.seeds("arXiv:2403.00858")
def test_tuning_with_tvd_plus_plus_leaves_a_lower_total_variation_than_with_cross_entropy() -> None:
    """Both start from one drafter that was trained to convergence with cross-entropy."""
    losses.test_tvd_descends_like_the_policy_gradient_that_tvd_plus_samples()
    losses.test_tvd_plus_rewards_tokens_that_the_target_finds_likelier()
    texts, heldout = written(100, 1), written(100, 2)
    start = trained("ce", texts)
    tuned = {name: acceptance(trained(name, texts, start, steps=100, rate=1.0), heldout) for name in ("ce", "tvd++")}
    assert 1 - tuned["tvd++"] < 1 - tuned["ce"] - 0.004


@pytest.mark.seeds("arXiv:2411.11055")
def test_pretraining_and_then_texts_of_the_target_s_own_beat_a_drafter_that_was_not_aligned(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pretrained on texts of another source, then tuned on few of the target's; decoded from held-out prompts."""
    states.test_states_are_those_of_a_forward_over_the_text(model, tmp_path / "states")
    texts.test_a_share_of_the_chunks_is_sampled(model, tmp_path, monkeypatch)
    losses.test_the_slope_written_out_is_that_of_autograd("ce")
    losses.test_a_label_off_the_list_costs_nothing()
    unaligned = trained("ce", written(100, 1, by=9))
    aligned = trained("fkl", written(60, 3), unaligned, steps=60)
    given = prompts([2] * 40, seed=11, vocab=VOCAB)
    assert accepted(aligned, given) > accepted(unaligned, given) + 0.07
