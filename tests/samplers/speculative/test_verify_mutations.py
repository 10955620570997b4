"""Tests of the tests: deliberately broken rules, which the joint distribution must reveal within thousands of draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.model import LanguageModel
from pardec.samplers.speculative.contracts import DecodeContext, Draft, Drafter, RoundResult, RoundUniforms, Uniforms
from pardec.samplers.speculative.ops import verification
from pardec.samplers.speculative.shape import template
from tests.samplers.ar_toys import speculation
from tests.samplers.joint_distributions import WORLDS, drafting, measure, worst

DRAWS = 4_000
WORLD = WORLDS["5 tokens, length 4"]
Patch = pytest.MonkeyPatch
CHAIN, TREE, COPY = "model:name=draft,k=3", "model:name=draft,k=3+template:widths=3-2", "lookup:k=3"


def dropped_residual(patch: Patch) -> None:
    """After a rejection the next token is sampled from p itself."""
    patch.setattr(verification, "residual", lambda r, q: r)
    patch.setattr(verification, "without", lambda r, gone: r)


def reused_uniform(patch: Patch) -> None:
    """One uniform is used for every test of a round."""
    found = RoundUniforms.accepts
    patch.setattr(RoundUniforms, "accepts", lambda self, width: found(self, width)[:, :1].expand(-1, width))


def reused_for_the_next_token(patch: Patch) -> None:
    """The uniform of the first test is used for the next token as well."""
    patch.setattr(RoundUniforms, "accepts", lambda self, width: self.draw_uniform("next")[:, None].expand(-1, width))


def reused_in_every_round(patch: Patch) -> None:
    """A round reuses the uniforms of the round before."""
    made = RoundUniforms.__init__

    def init(self: RoundUniforms, source: Any, rows: Any, rounds: Any, device: Any) -> None:
        made(self, source, rows, np.zeros_like(rounds), device)

    patch.setattr(RoundUniforms, "__init__", init)


def wrong_q(patch: Patch) -> None:
    """Drafts are tested against a flatter distribution than they were sampled from."""
    _judging(patch, lambda draft: replace(draft, q=None if draft.q is None else draft.q.sqrt().softmax(-1)))


def late_q(patch: Patch) -> None:
    """Each draft is tested against the distribution of the one before."""
    _judging(patch, lambda draft: replace(draft, q=None if draft.q is None else draft.q.roll(1, 1)))


def unrestricted_q(patch: Patch) -> None:
    """Siblings sampled without replacement are tested against q that still has the earlier ones."""
    patch.setattr(
        template, "conditional_distributions", lambda tokens, parent, distribution, *, replacement: distribution
    )


def dropped_bonus(patch: Patch) -> None:
    """After a fully accepted draft, the last token is repeated in place of a new one."""
    made = verification.judge

    def judge(draft: Draft, p: Tensor, uniforms: Uniforms) -> Any:
        found = made(draft, p, uniforms)
        last = draft.tokens.gather(1, found.path.gather(1, found.count[:, None]))[:, 0]
        whole = torch.from_numpy(draft.sizes > 1) & (found.count == torch.from_numpy(draft.sizes - 1))
        return replace(found, next=torch.where(whole, last, found.next))

    _everywhere(patch, judge)


def copies_labelled_uniform(patch: Patch) -> None:
    """Copied tokens are labelled as samples of the uniform distribution."""

    def labelled(draft: Draft) -> Draft:
        return replace(draft, q=torch.full((*draft.tokens.shape, WORLD.model.vocab_size), 1 / WORLD.model.vocab_size))

    _judging(patch, labelled)


def greedy_test(patch: Patch) -> None:
    """A draft is accepted exactly if the target gives it more probability than the drafter."""
    patch.setattr(RoundUniforms, "accepts", lambda self, width: torch.ones(len(self.rows), width, dtype=torch.float64))


def _judging(patch: Patch, change: Callable[[Draft], Draft]) -> None:
    made = verification.judge
    _everywhere(patch, lambda draft, p, uniforms: made(change(draft), p, uniforms))


def _everywhere(patch: Patch, judge: Callable[[Draft, Tensor, Uniforms], Any]) -> None:
    for name in ("speculative", "rrs", "kseq"):
        patch.setattr(f"pardec.samplers.speculative.accept.{name}.judge", judge)


MUTATIONS: list[tuple[Callable[[Patch], None], str]] = [
    (dropped_residual, CHAIN + "+speculative"),
    (dropped_residual, TREE + "+rrs"),
    (dropped_residual, COPY + "+speculative"),
    (reused_uniform, CHAIN + "+speculative"),
    (reused_for_the_next_token, CHAIN + "+speculative"),
    (reused_in_every_round, CHAIN + "+speculative"),
    (wrong_q, CHAIN + "+speculative"),
    (wrong_q, TREE + "+rrs"),
    (late_q, CHAIN + "+speculative"),
    (unrestricted_q, TREE + "+rrs"),
    (dropped_bonus, CHAIN + "+speculative"),
    (dropped_bonus, COPY + "+speculative"),
    (copies_labelled_uniform, COPY + "+speculative"),
    (greedy_test, CHAIN + "+speculative"),
]


@pytest.mark.parametrize(("mutation", "spec"), MUTATIONS, ids=[f"{m.__name__}-{s}" for m, s in MUTATIONS])
def test_a_broken_rule_shows(mutation: Callable[[Patch], None], spec: str, monkeypatch: Patch) -> None:
    mutation(monkeypatch)
    draws = 5 * DRAWS if mutation is reused_uniform else DRAWS  # the hardest to see
    assert worst(measure(spec, WORLD, draws)) > 6


@pytest.mark.parametrize("spec", sorted({spec for _, spec in MUTATIONS}))
def test_the_same_draws_of_the_right_rules_pass(spec: str) -> None:
    assert worst(measure(spec, WORLD, DRAWS)) < 4


# --- two refreshes of a window in a row ---


@dataclass(frozen=True)
class Refreshed:
    """Replays a Jacobi window at one position: the token is kept if it passes, else redrawn from the residual."""

    fresh: bool  # False: the keys of the numbers are positions alone, the same in every round

    def distribution(self, draws: int) -> np.ndarray:
        """The frequencies of the token after two refreshes, q -> p1 -> p2, which should equal p2."""
        distributions = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.6, 0.1, 0.3]], dtype=torch.float64)
        source = _source(draws)
        rows = np.arange(draws)
        token = RoundUniforms(source, rows, np.zeros(draws, np.int64), torch.device("cpu")).draw(
            distributions[:1].expand(draws, -1), "token"
        )
        for turn in (1, 2):
            rounds = np.full(draws, turn if self.fresh else 1)
            uniforms = RoundUniforms(source, rows, rounds, torch.device("cpu"))
            draft = Draft(
                torch.stack((torch.zeros_like(token), token), 1),
                np.full(draws, 2),
                np.zeros(draws, np.int64),
                q=distributions[turn - 1].expand(draws, 2, -1),
            )
            made = verification.judge(draft, distributions[turn].expand(draws, 2, -1), uniforms)
            token = torch.where(made.count == 1, token, made.next)
        return np.bincount(token.numpy(), minlength=3) / draws


def _source(draws: int) -> Any:
    from pardec.samplers.rng import Keyed as Source

    return Source(tuple(range(draws)))


def test_two_coupled_refreshes_need_fresh_numbers() -> None:
    """If uniforms depend only on the position, the second refresh reuses the first's, and its distribution drifts."""
    true = np.array([0.6, 0.1, 0.3])
    assert np.abs(Refreshed(fresh=True).distribution(40_000) - true).sum() / 2 < 0.008
    assert np.abs(Refreshed(fresh=False).distribution(40_000) - true).sum() / 2 > 0.05


# --- a drafter that looks at what the test will be ---


class Peeking(Drafter):
    """Samples its tokens with the uniforms that the acceptance tests them with."""

    def width(self, model: LanguageModel) -> int:
        return 2

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: Any) -> Draft:
        text, vocab = context.text, context.model.vocab_size
        q = torch.full((len(text), 2, vocab), 1 / vocab)
        assert isinstance(uniforms, RoundUniforms)
        drafted = (uniforms.accepts(2)[:, 1] * vocab).long()
        return Draft.chain(text, drafted[:, None], np.minimum(room, 1), q=q)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: Any) -> None:
        return


def test_numbers_shared_by_drafter_and_test_show() -> None:
    with drafting(WORLD.model.vocab_size):
        assert worst(measure(speculation(Peeking()), WORLD, DRAWS)) > 6
