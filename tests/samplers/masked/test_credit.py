"""`credit` by hand, against the naive matrix; special cases, lifetime and size of its state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from pardec.samplers import registry
from pardec.samplers.masked.canvas import Canvas, Revision, Update
from pardec.samplers.masked.contracts import Evidence
from pardec.samplers.masked.logits.credit import Credit, Credits
from pardec.samplers.ops.distribution import DenseDistribution, Distribution
from tests.reference import naive_selects as naive
from tests.samplers.eight_tokens import LAWS, MASK, TOKENS
from tests.samplers.heldout_answers import answered
from tests.samplers.parity import FAMILIES, agree
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import fill, prompts, request, run, same, table, toy


def boosted(p: float, credit: float, alpha: float = 0.7) -> float:
    """The probability of a token with probability p whose rivals have no credit."""
    odds = p / (1 - p) * (1 + credit) ** alpha
    return odds / (1 + odds)


def eight_tokens_by_hand() -> None:
    """.60 has credit .60^.2 = .903 at once: odds 1.5 * 1.903^.7 = 2.353, so .7018 passes .7 two forwards early."""
    asked = request([[MASK] * 8], [0], block_length=8)
    plain, got = (run(table(LAWS), spec, asked) for spec in ("threshold:tau=0.7", "credit+threshold:tau=0.7"))
    assert plain.trace.commit_step[0].tolist() == [0, 1, 0, 3, 0, 0, 0, 2]
    assert got.trace.commit_step[0].tolist() == [0, 0, 0, 2, 0, 0, 0, 1]
    assert got.tokens[0].tolist() == list(TOKENS)
    scores = got.trace.commit_score[0].tolist()
    assert scores[1] == pytest.approx(boosted(0.6, 0.6**0.2), abs=1e-6)
    assert scores[7] == pytest.approx(boosted(0.45, 1.8 * 0.45**0.2), abs=1e-6)  # decayed once, added twice
    assert scores[3] == pytest.approx(boosted(0.30, (1 + 0.8 + 0.64) * 0.3**0.2), abs=1e-6)


def the_published_variant_without_parameters_by_hand() -> None:
    """Eight open: weight 0. Then three of eight: alpha = beta = 5/8, credit p + 5/8 p. The fourth forward: 7/8."""
    asked = request([[MASK] * 8], [0], block_length=8)
    got = run(table(LAWS), "credit:free=true+threshold:tau=0.8", asked)
    assert got.trace.commit_step[0].tolist() == [0, 1, 0, 3, 0, 0, 0, 2]
    scores = got.trace.commit_score[0].tolist()
    assert scores[0] == pytest.approx(0.95, abs=1e-6)
    assert scores[1] == pytest.approx(boosted(0.6, 0.6 + 0.6 * 5 / 8, 5 / 8), abs=1e-6)
    assert scores[7] == pytest.approx(boosted(0.45, 0.45 + 6 / 8 * (0.45 + 5 / 8 * 0.45), 6 / 8), abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_matrix_kept_sparsely(family: str) -> None:
    """Every family, with blocks longer than the initial room for pairs; alpha = 2 changes many decisions."""
    length = {} if "sdar" in family else {"block_length": 8}
    cases = {
        "credit:alpha=2.0+threshold:tau=0.5": lambda: naive.Credit(naive.threshold(0.5), 2.0, 0.8, 0.2),
        "credit:alpha=4.0,beta=0.3,gamma=0.9+threshold:tau=0.7": lambda: naive.Credit(
            naive.threshold(0.7), 4.0, 0.3, 0.9
        ),
        "credit:beta=0+threshold:tau=0.5": lambda: naive.Credit(naive.threshold(0.5), 0.7, 0.0, 0.2),
        "credit+entropy_bound:gamma=1": lambda: naive.Credit(naive.entropy_bound(1.0), 0.7, 0.8, 0.2),
        "credit:free=true+threshold:tau=0.5": lambda: naive.Credit(naive.threshold(0.5), 0, 0, 0, free=True),
        "credit+sequential": lambda: naive.Credit(naive.sequential, 0.7, 0.8, 0.2),
    }
    for spec, make in cases.items():
        agree(spec, make, family=family, **length)


@pytest.mark.parametrize("spec", ["threshold:tau=0.4", "entropy_bound@dual", "margin+factor@prefix:refresh=2"])
@pytest.mark.parametrize("distribution", [{}, {"temperature": 0.7, "top_p": 0.9}])
def test_without_weight_it_changes_no_bit(spec: str, distribution: dict[str, float]) -> None:
    model, given = toy("dream", sharp=1.2), prompts((4, 7, 2))
    base, off = (fill(model, text, given, (9, 5, 11), **distribution) for text in (spec, f"credit:alpha=0+{spec}"))
    assert all(same(base, row, off, row) for row in range(3))
    assert np.array_equal(base.trace.commit_score, off.trace.commit_score)
    assert registry.resolve("credit:alpha=0+sequential").exact == "greedy"
    assert registry.resolve("credit+sequential").exact == "relaxed"


# --- the stage alone: eight positions, one law at a time ---


class Alone:
    def __init__(self, stage: Credit, block: int = 8) -> None:
        row = torch.full((8,), MASK)
        self.canvas = Canvas((row,), (0,), mask_id=MASK, pad_id=4, block_length=block)
        self.request = request([row.tolist()], [0], block_length=block)
        self.stage, self.state = stage, stage.start(self.canvas)

    def step(
        self, distributions: torch.Tensor, commit: tuple[int, ...] = (), revision: Revision | None = None
    ) -> torch.Tensor:
        """The term [W, V] that the stage adds to the logits; then some positions are committed."""
        evidence = Evidence(
            DenseDistribution(distributions.log()[None]), self.canvas.window, self.canvas.eligible, self.request
        )
        self.stage.prepare(self.canvas, self.state)
        found = self.stage.logits(evidence, self.canvas, self.state).logits - evidence.logits
        which = torch.zeros_like(self.canvas.eligible)
        which[0, list(commit)] = True
        self.canvas.commit(Update(which, torch.zeros_like(self.canvas.window), which.float()), revision=revision)
        return found[0].nan_to_num(0)  # the impossible tokens stay at -inf


def credit_gathers_for_each_token_a_position_ever_preferred() -> None:
    alone, other = Alone(Credit(alpha=1.0, beta=0.5, gamma=1.0)), LAWS.clone()
    other[:, :4] = 0.1
    other[:, 3] = 0.7
    first, second, third = alone.step(LAWS), alone.step(other), alone.step(LAWS)
    assert first[1].expm1().tolist() == pytest.approx([0.6, 0, 0, 0, 0, 0, 0], abs=1e-5)
    assert second[1].expm1().tolist() == pytest.approx([0.3, 0, 0, 0.7, 0, 0, 0], abs=1e-5)
    assert third[1].expm1().tolist() == pytest.approx([0.15 + 0.6, 0, 0, 0.35, 0, 0, 0], abs=1e-5)
    assert second[4].expm1().tolist() == pytest.approx([0, 0, 0, 0.99 / 2 + 0.7, 0, 0, 0], abs=1e-5)  # the same token


def test_the_credit_of_a_committed_position_is_gone_when_it_is_taken_back() -> None:
    alone = Alone(Credit(alpha=1.0, beta=1.0, gamma=1.0))
    alone.canvas.revises = True
    alone.step(LAWS, commit=(1,))
    back = torch.zeros_like(alone.canvas.eligible)
    back[0, 1] = True
    held = alone.step(LAWS, revision=Revision(reopen=back))
    again = alone.step(LAWS)
    assert held[1].abs().max() == 0  # committed: its law is left as it is
    assert again[1].expm1()[0].item() == pytest.approx(0.6, abs=1e-5)
    assert again[7].expm1()[1].item() == pytest.approx(3 * 0.45, abs=1e-5)  # never committed: three steps of credit


def a_new_block_starts_without_credit() -> None:
    alone = Alone(Credit(alpha=1.0, beta=1.0, gamma=1.0), block=4)
    for _ in range(3):
        first = alone.step(LAWS[:4], commit=())
    alone.step(LAWS[:4], commit=(0, 1, 2, 3))
    assert alone.canvas.block_start[0] == 4
    second = alone.step(LAWS[4:])
    assert first[1].expm1()[0].item() == pytest.approx(3 * 0.6, abs=1e-5)
    assert second[0].expm1()[3].item() == pytest.approx(0.99, abs=1e-5)
    assert second[1].expm1()[0].item() == pytest.approx(0.85, abs=1e-5)


def a_row_that_enters_a_block_leaves_the_share_of_another_row() -> None:
    """Each row of `free` counts from its own block: one enters its second block where the other has 3 of 4 left."""
    rows = (torch.tensor([0, 0, 0, MASK, *[MASK] * 4]), torch.full((8,), MASK))
    canvas = Canvas(rows, (0, 0), mask_id=MASK, pad_id=4, block_length=4)
    asked, stage = request([row.tolist() for row in rows], [0, 0], block_length=4), Credit(free=True)
    state = stage.start(canvas)
    shares = []
    for column in (3, 1):
        evidence = Evidence(DenseDistribution(LAWS[:4].log().repeat(2, 1, 1)), canvas.window, canvas.eligible, asked)
        stage.prepare(canvas, state)
        stage.logits(evidence, canvas, state)
        shares.append(state.share.tolist())
        which = torch.zeros_like(canvas.eligible)
        which[:, column] = True
        canvas.commit(Update(which, torch.zeros_like(canvas.window), which.float()))
    assert canvas.block_start.tolist() == [4, 0]
    assert shares == [[0, 0], [0, 0.25]]


def test_nothing_is_forgotten_when_every_step_prefers_another_token() -> None:
    """More distinct tokens than the initial room."""
    alone, count = Alone(Credit(alpha=1.0, beta=1.0, gamma=1.0)), 6
    for favourite in range(count):
        distributions = torch.full((8, 7), 0.05)
        distributions[:, favourite] = 0.7
        found = alone.step(distributions)
    assert found[0].expm1().tolist() == pytest.approx([0.7] * count + [0], abs=1e-5)


def test_the_state_of_a_row_stays_small_at_a_large_vocabulary() -> None:
    vocab, positions, steps = 126_464, 32, 70  # a revised block can take more steps than it has positions
    row = torch.full((positions,), vocab - 1)
    canvas = Canvas((row,), (0,), mask_id=vocab - 1, pad_id=0, block_length=positions)
    stage = Credit()
    state = stage.start(canvas)
    asked = request([row.tolist()], [0], block_length=positions)
    nothing = Update(torch.zeros_like(canvas.eligible), canvas.window, canvas.eligible.float())
    for step in range(steps):
        logits = torch.zeros(1, positions, 256).index_fill(-1, torch.tensor([step]), 3.0)
        stage.prepare(canvas, state)
        stage.logits(Evidence(DenseDistribution(logits), canvas.window, canvas.eligible, asked), canvas, state)
        canvas.commit(nothing)
    assert isinstance(state, Credits)
    assert (state.values > 0).sum(-1).max() > 60
    assert sum(value.nbytes for value in vars(state).values()) < 1_000_000


def test_rows_that_leave_take_their_credit_along() -> None:
    model, given = toy(sharp=1.2), prompts((4, 7, 2, 5))
    whole = fill(model, "credit:alpha=2+threshold:tau=0.5", given, (3, 12, 6, 9), block_length=6)
    assert len(set(whole.nfe)) > 1
    for row, count in enumerate((3, 12, 6, 9)):
        alone = fill(model, "credit:alpha=2+threshold:tau=0.5", [given[row]], count, block_length=6, seeds=[100 + row])
        assert same(alone, 0, whole, row)


test_bad_parameters = refused_specs(
    [
        ("credit:alpha=1e39", r"alpha must be at most 1e\+06"),
        ("credit:gamma=1e7", r"gamma must be at most 1e\+06"),
        ("smoothing:most=1e39", r"smoothing: most must be at most 1e\+06"),
        ("credit:alpha=inf", r"alpha must be at most 1e\+06, got inf"),
        ("credit:free=true,alpha=1", "free=true has no alpha, beta or gamma to set"),
        ("credit:delta=1", "unknown parameter 'delta'"),
    ]
)


class Elsewhere(Credit):
    """Credit of the same size at the wrong place: each position has that of the one before it."""

    def logits(self, evidence: Evidence, canvas: Canvas, state: Credits) -> Distribution:
        super().logits(evidence, canvas, state)
        return evidence.distribution.boosted(state.tokens.roll(1, 1), state.values.roll(1, 1).log1p() * self.alpha)


@pytest.mark.seeds("arXiv:2510.06133")
def test_no_weight_changes_no_bit_and_credit_answers_as_well_in_fewer_steps() -> None:
    eight_tokens_by_hand()
    the_published_variant_without_parameters_by_hand()
    credit_gathers_for_each_token_a_position_ever_preferred()
    a_new_block_starts_without_credit()
    test_it_is_the_matrix_kept_sparsely("llada")
    a_row_that_enters_a_block_leaves_the_share_of_another_row()
    test_the_credit_of_a_committed_position_is_gone_when_it_is_taken_back()
    test_nothing_is_forgotten_when_every_step_prefers_another_token()
    model, given = toy("dream", sharp=1.2), prompts((4, 7, 2))
    base, off = (
        fill(model, spec, given, (9, 5, 11)) for spec in ("threshold:tau=0.4", "credit:alpha=0+threshold:tau=0.4")
    )
    assert all(same(base, row, off, row) for row in range(3))
    assert np.array_equal(base.trace.commit_score, off.trace.commit_score)
    right, plain = answered("tiny-llada", "lists", "threshold:tau=0.9+eos", 60)
    more, credit = answered("tiny-llada", "lists", "credit+threshold:tau=0.9+eos", 60)
    assert more >= right
    misplaced = replace(registry.resolve("credit+threshold:tau=0.9+eos", "masked"), logits=(Elsewhere(),))
    _, control = answered("tiny-llada", "lists", misplaced, 60)
    assert sum(credit.nfe) < 0.95 * min(sum(plain.nfe), sum(control.nfe))
