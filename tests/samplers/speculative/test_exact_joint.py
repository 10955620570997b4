"""The joint distribution of sequences of small models, for every drafter with every exact acceptance."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from pardec.samplers import registry
from pardec.samplers.speculative.contracts import DecodeContext, Draft, Drafter, RoundResult, Uniforms
from pardec.samplers.traits import Trait
from tests.grids import one_in, thinned
from tests.samplers.ar_toys import floor, g_test, logits, run, speculation, variation
from tests.samplers.joint_distributions import (
    VARIANTS,
    WORLDS,
    acceptances,
    fits,
    leading,
    measure,
    small,
    specs,
)

# Of `model`, with `speculative`: as many show the rule of test_verify_mutations that is the hardest to see broken, and
# the rule is the acceptance's. What a drafter can break shows in 3,000 draws.
MANY = 20_000
DRAWS = 3_000  # of each other drafter, with `speculative` if it can go with that
FEW = 2_000  # with each other acceptance
SHORT, LONG, CUT = WORLDS.values()
SPECS = sorted(specs(), key=lambda spec: spec.endswith("+speculative"))
LENGTHS = {card.name for card in registry.cards() if card.stage == "length"}
DRAFTERS = {spec.rsplit("+", 1)[0]: spec for spec in SPECS}
MATCHED = [small(name) for name in ("lookup", "model")] + [f"{small('model')}+{small('template')}"]


def draws(spec: str) -> int:
    """Length controllers do not sample, so they get few draws here; they act in the longer rows."""
    if spec == f"{small('model')}+speculative":
        return MANY
    return DRAWS if spec in DRAFTERS.values() and not LENGTHS & set(spec.split("+")) else FEW


def always(spec: str) -> bool:
    """The cases that always run: every drafter once; every acceptance with copies, drafted chains and trees.

    The long run draws each pair.
    """
    return spec in DRAFTERS.values() or spec.rsplit("+", 1)[0] in MATCHED


def prolonged(spec: str) -> bool:
    """Length controllers, which act only in longer rows, and an eighth of the others."""
    return bool(LENGTHS & set(spec.split("+"))) or one_in(8, spec)


@pytest.mark.parametrize("spec", thinned(((spec,) for spec in SPECS), always))
def test_draws_have_the_joint_distribution_of_the_target(spec: str) -> None:
    fits(measure(spec, SHORT, draws(spec)))


@pytest.mark.parametrize("spec", thinned(((spec,) for spec in DRAFTERS.values()), prolonged))
def test_longer_rows_of_fewer_tokens_too(spec: str) -> None:
    """Windows are then fed several times, which does not happen in rows of four tokens."""
    fits(measure(spec, LONG, FEW))


@pytest.mark.parametrize("spec", [spec for spec in SPECS if "model" in spec and "template" in spec])
def test_distributions_with_zeros_too(spec: str) -> None:
    """With a temperature and a top-k, the drafter's distribution has zeros."""
    fits(measure(spec, CUT, FEW))


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_two_hundred_thousand_draws(spec: str) -> None:
    fits(measure(spec, SHORT, 200_000, seed=1))


def test_nothing_that_promises_the_distribution_is_left_out() -> None:
    names = {part.name for spec in SPECS for part in registry.resolve(spec, "ar", sampling=True).spec.parts}
    cards = [card for card in registry.cards() if card.family == "ar" and card.exact != "relaxed"]
    assert {card.name for card in cards} - names <= {"greedy"}  # which has no law to keep
    assert {"speculative", "match", "rrs", "kseq"} <= {card.name for card in cards}
    assert set(VARIANTS) <= names
    assert len(acceptances()) == len(set(acceptances())) >= 6


def test_tokens_of_the_toys_depend_on_each_other() -> None:
    """A sampler that drew each position from its marginal would be far off."""
    for world in (SHORT, LONG):
        for distribution in world.distributions:
            axes = range(distribution.ndim)
            product = np.ones_like(distribution)
            for axis in axes:
                alone = distribution.sum(axis=tuple(a for a in axes if a != axis))
                product = product * alone.reshape([-1 if a == axis else 1 for a in axes])
            assert np.abs(product - distribution).sum() / 2 > 0.15


# --- drafters that no registry should have ---

Kind = Literal["disjoint", "wrong", "right"]


class Adversary(Drafter):
    """Drafts chains: sampled from the two unlikeliest tokens, certain about the unlikeliest, or from the target."""

    provides = frozenset({Trait.TAKES_SHAPE})

    def __init__(self, kind: Kind, k: int = 3) -> None:
        self.kind, self.k = kind, k

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: Any) -> Draft:
        text, counts = context.text, np.minimum(room, self.k)
        tokens, distributions = [text.last], []
        for step in range(int(counts.max(initial=0))):
            distribution = torch.empty(len(text), context.model.vocab_size)
            for length in np.unique(text.length):
                at = np.flatnonzero(text.length == length)
                drafted = torch.stack(tokens[1:], 1)[at].tolist() if step else [[]] * len(at)
                rows = [[*text.row(row).tolist(), *more] for row, more in zip(at, drafted, strict=True)]
                known = {tuple(row) for row in rows}
                of = dict(zip(known, logits(context.model, list(known))[:, -1].softmax(-1), strict=True))
                distribution[at] = torch.stack([of[tuple(row)] for row in rows])
            if self.kind != "right":
                distribution = (
                    distribution <= distribution.kthvalue(2, -1, keepdim=True).values
                ).float() * distribution
                distribution = distribution / distribution.sum(-1, keepdim=True)
            if self.kind == "wrong":
                tokens.append(distribution.masked_fill(distribution == 0, 2).argmin(-1))
            else:
                tokens.append(uniforms.draw(distribution, "draft", step))
            distributions.append(distribution)
        q = (
            torch.stack([torch.zeros_like(distributions[0]), *distributions], 1)
            if distributions and self.kind != "wrong"
            else None
        )
        return Draft(torch.stack(tokens, 1), counts + 1, text.length - 1, q=q)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: Any) -> None:
        return


@pytest.mark.parametrize("accept", ["speculative", "match", "kseq"])
@pytest.mark.parametrize("kind", ["disjoint", "wrong", "right"])
@pytest.mark.covers(1)
def test_adversaries_change_the_speed_only(kind: Kind, accept: str) -> None:
    fits(measure(speculation(Adversary(kind), accept), SHORT, FEW))


def test_a_draft_outside_the_target_s_support_is_never_committed() -> None:
    """top_k=1 makes the target a point mass; drafts of other tokens must be rejected."""
    done = run(SHORT.model, speculation(Adversary("wrong")), SHORT.prompts * 50, 4, temperature=1.0, top_k=1)
    plain = run(SHORT.model, "sequential", SHORT.prompts * 50, 4)
    assert (done.tokens == plain.tokens).all()
    assert max(max(row) for row in done.trace.accepted) == 0


def test_a_right_drafter_is_always_accepted() -> None:
    done = run(SHORT.model, speculation(Adversary("right")), SHORT.prompts * 200, 4, temperature=1.0)
    assert set(done.nfe) == {2}  # the prompt's forward, and one over three drafts


# --- the tests of draws themselves ---


def test_the_statistics_know_a_right_distribution_from_a_wrong_one() -> None:
    drawn = np.random.RandomState(0)
    distribution = drawn.dirichlet([0.5] * 625)
    right = [drawn.multinomial(20_000, distribution) for _ in range(40)]
    z = np.array([g_test(counts, distribution) for counts in right])
    assert abs(z.mean()) < 0.6
    assert 0.6 < z.std() < 1.5
    assert np.mean([variation(counts, distribution) for counts in right]) == pytest.approx(
        floor(distribution, 20_000), rel=0.05
    )
    moved = distribution.copy()
    moved[:50] *= 1.5
    assert g_test(drawn.multinomial(20_000, moved / moved.sum()), distribution) > 4
    assert g_test(np.array([1, 9]), np.array([0.0, 1.0])) == float("inf")


@pytest.mark.slow
def test_the_committed_table_is_current() -> None:
    """If it fails: python benchmarks/exact_joint.py --keep."""
    text = (Path(__file__).resolve().parents[3] / "benchmarks" / "exact_joint.md").read_text()
    assert [spec for spec in leading() if f"`{spec}`" not in text] == []
    assert max(map(float, re.findall(r"z ([-+][\d.]+|[-+]?inf)", text))) < 4
