"""`sjd:reuse`: which guesses stay, the resulting distribution of these, and the joint distribution of texts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.speculative.draft import sjd
from pardec.samplers.speculative.draft.sjd import Sjd, reuse
from tests.samplers.ar_toys import plain_greedy, prompts, rows, run, speculation, toy_ar
from tests.samplers.joint_distributions import WORLDS, World, measure, worst
from tests.samplers.speculative.test_sjd import LONG, kept_share, scripted


def what_stays_by_hand() -> None:
    p = torch.tensor([[0.5, 0.2, 0.3]] * 5)
    q = torch.tensor([[0.1, 0.5, 0.4]] * 5)
    old, point = torch.tensor([0, 1, 2, 1, 2]), torch.tensor([False, False, False, True, True])
    stays, rest, label = reuse(p, old, q, point, torch.tensor([True] * 5), 0.25)
    assert stays.tolist() == [True, False, True, False, True]  # p above a quarter
    # Of q .1 and .4 stay, and half of all is sampled again: .1 + .25, .1, .4 + .15.
    assert torch.allclose(label[:3], torch.tensor([0.35, 0.1, 0.55]))
    assert torch.allclose(rest[:3], torch.tensor([0.0, 1.0, 0.0]))
    assert torch.equal(label[3], p[3])  # a point mass that does not stay is replaced by a sample of p
    assert not reuse(p, old, q, point, torch.tensor([True] * 5), 0.5)[0].any()  # nor at the bound itself
    none = reuse(p, old, q, point, torch.tensor([False] * 5), 0.25)
    assert not none[0].any()
    assert torch.equal(none[2], p)


@pytest.mark.parametrize("mode", ["coupled", "independent"])
@pytest.mark.parametrize("least", [0.2, 0.45])
@pytest.mark.covers(1)
def test_tokens_are_from_the_distribution_they_are_labelled_with(mode: str, least: float) -> None:
    for init in ("random", "repeat"):
        assert scripted(mode, init, least).worst() < 4.5


@pytest.mark.parametrize("mode", ["coupled", "independent"])
@pytest.mark.parametrize("least", [0.2, 0.45])
@pytest.mark.covers(1)
def test_the_joint_distribution_is_the_target_s(mode: str, least: float) -> None:
    assert worst(measure(f"sjd:window=6,refresh={mode},init=repeat,reuse={least}", LONG, 4000, seed=1)) < 3.5


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("rest", ["", "init=random,uniform=true", "init=ngram", "refresh=independent"])
@pytest.mark.slow
def test_the_joint_distribution_is_the_target_s_in_every_mode(world: str, rest: str) -> None:
    assert worst(measure(f"sjd:window=6,reuse=0.3,{rest}".rstrip(","), WORLDS[world], 20_000, seed=3)) < 3.5


def own_labels(*arguments: Any) -> Any:
    """As published: a guess that stays keeps its own q."""
    stays, rest, _ = reuse(*arguments)
    p, _, q = arguments[:3]
    return stays, rest, torch.where(stays[:, None], q, p)


@pytest.mark.seeds("arXiv:2512.07503")
def test_mutation_the_published_labels_break_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    what_stays_by_hand()
    coupled, independent = (scripted(mode, "random", 0.3) for mode in ("coupled", "independent"))
    assert max(coupled.worst(), independent.worst()) < 4.5
    assert kept_share(coupled)[0] > kept_share(independent)[0] + 0.02  # .52 and .49
    world, drafter = World(toy_ar(0, 3, 1.2), ((2, 0),), 6), Sjd(6, "independent", "repeat", reuse=0.5)
    assert worst(measure(speculation(drafter), world, 4000)) < 3.5
    monkeypatch.setattr(sjd, "reuse", own_labels)
    assert scripted("independent", "random", 0.3).worst() > 10
    assert worst(measure(speculation(drafter), world, 4000)) > 6


def test_at_temperature_0_it_is_plain_greedy_and_with_1_it_is_what_it_is_without() -> None:
    model, new = toy_ar(4, 6, 1.5), (20, 9, 14)
    given = prompts((3, 6, 1), vocab=6, seed=1)
    greedy = run(model, "sjd:window=5,reuse=0.4", given, new)
    assert rows(greedy) == [plain_greedy(model, *each) for each in zip(given, new, strict=True)]
    one, other = (run(model, f"sjd:window=5{more}", given, new, temperature=1.0) for more in ("", ",reuse=1"))
    assert (rows(one), one.nfe) == (rows(other), other.nfe)


def test_a_row_alone_is_the_row_in_a_ragged_batch() -> None:
    model, given = toy_ar(4, 6, 1.5), prompts((3, 6, 1), vocab=6, seed=1)
    whole = run(model, "sjd:window=5,reuse=0.3", given, 12, temperature=1.0, seeds=[7, 8, 9])
    for row in range(3):
        alone = run(model, "sjd:window=5,reuse=0.3", given[row : row + 1], 12, temperature=1.0, seeds=[7 + row])
        assert rows(alone)[0] == rows(whole)[row]


def test_what_cannot_be_is_refused() -> None:
    for bad, says in (
        ("reuse=1.5", r"reuse must lie in \[0, 1\]"),
        ("reuse=0.5,refresh=gumbel", "write|noise is fixed"),
    ):
        with pytest.raises(SpecError, match=says):
            registry.resolve(f"sjd:{bad}", "ar")
