"""Every select and proposer on one block of eight tokens, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pardec.samplers.masked.canvas import Canvas
from pardec.samplers.masked.contracts import Evidence, Proposal
from pardec.samplers.ops.distribution import DenseDistribution
from pardec.samplers.registry import build_method, resolve
from pardec.samplers.rng import Keyed
from pardec.samplers.spec import parse
from tests.samplers.toys import request, run, table

# The probability of the likeliest token at each position; three others share the rest evenly.
SURE = (0.95, 0.60, 0.91, 0.30, 0.99, 0.85, 0.901, 0.45)
TOKENS = (2, 0, 1, 3, 3, 0, 2, 1)  # the likeliest
MASK = 6
LAWS = torch.zeros(8, 7)  # ids 0..3 are tokens; pad, end and mask have no probability here
for _place, (_token, _sure) in enumerate(zip(TOKENS, SURE, strict=True)):
    LAWS[_place, :4] = (1 - _sure) / 3
    LAWS[_place, _token] = _sure

# spec -> the forward that commits each position
STEPS = {
    "sequential": [1, 5, 2, 7, 0, 4, 3, 6],
    "fixed": [1, 5, 2, 7, 0, 4, 3, 6],
    "fixed:steps=3": [0, 1, 0, 2, 0, 1, 1, 2],  # 3, 3, 2 tokens
    "fixed:steps=5": [0, 2, 1, 4, 0, 2, 1, 3],  # 2, 2, 2, 1, 1 tokens
    "fixed:steps=1": [0] * 8,
    "fixed:steps=20": [1, 5, 2, 7, 0, 4, 3, 6],  # the twelve idle steps are not made
    "threshold:tau=0.9": [0, 2, 0, 4, 0, 1, 0, 3],  # four pass, then one per forward
    "threshold:tau=1": [1, 5, 2, 7, 0, 4, 3, 6],
    "threshold:tau=0": [0] * 8,
    # Ranked .99 .95 .91 .901 .85 | .60 against 1 - 1/(r+1) = .5 .667 .75 .8 .833 | .857; then .60 | .45 against .667.
    "factor": [0, 1, 0, 3, 0, 0, 0, 2],
    "factor:reference=true": [0, 1, 0, 2, 0, 0, 0, 2],  # .45 and then exactly the last candidate, .30, fails: both go
    "factor:f=0.25": [0, 4, 1, 6, 0, 3, 2, 5],  # .99 .95 | .91 against .917 | .9375; then always one
    "factor:f=0": [1, 5, 2, 7, 0, 4, 3, 6],
    "factor:f=1000": [0] * 8,
    # Entropies: .99 0.067, .95 0.254, .91 0.401, .901 0.432, .85 0.588, .60 1.113, .45 1.292, .30 1.380 nats.
    "entropy_threshold": [0, 2, 0, 4, 0, 1, 0, 3],
    "entropy_threshold:tau=0.42": [0, 3, 0, 5, 0, 2, 1, 4],
    "entropy_threshold:tau=0": [1, 5, 2, 7, 0, 4, 3, 6],
    "entropy+threshold:tau=-0.42": [0, 3, 0, 5, 0, 2, 1, 4],
    # Margins (4p - 1) / 3: .99 0.987, .95 0.933, .91 0.880, .901 0.868, .85 0.8
    "margin+threshold:tau=0.85": [0, 2, 0, 4, 0, 1, 0, 3],
    "margin+threshold:tau=0.87": [0, 3, 0, 5, 0, 2, 1, 4],
    "margin+sequential": [1, 5, 2, 7, 0, 4, 3, 6],
}


@pytest.mark.parametrize("spec", STEPS)
def test_eight_tokens_by_hand(spec: str) -> None:
    got = run(table(LAWS), spec, request([[MASK] * 8], [0], block_length=8))
    assert got.trace.commit_step[0].tolist() == STEPS[spec]
    assert got.tokens[0].tolist() == list(TOKENS)
    assert got.nfe == (max(STEPS[spec]) + 1,)


@pytest.mark.parametrize(
    ("spec", "steps"),
    [
        ("fixed:steps=3", [0, 1, 0, 1, 2, 2, 2, 2]),  # two steps for the first block, one for the second
        ("fixed:steps=8", [0, 2, 1, 3, 4, 6, 5, 7]),
        ("fixed:steps=1", [0, 0, 0, 0, 1, 1, 1, 1]),  # a block takes one forward at least
        ("threshold:tau=0.9", [0, 1, 0, 2, 3, 4, 3, 5]),
        ("factor", [0, 1, 0, 2, 3, 3, 3, 4]),
    ],
)
def test_two_blocks_by_hand(spec: str, steps: list[int]) -> None:
    got = run(table(LAWS), spec, request([[MASK] * 8], [0], block_length=4))
    assert got.trace.commit_step[0].tolist() == steps


def test_a_quota_counts_open_positions_only() -> None:
    """Two given tokens leave six for three steps: 2, 2, 2."""
    row = [MASK, MASK, MASK, 0, 0, MASK, MASK, MASK]
    got = run(table(LAWS), "fixed:steps=3", request([row], [0], block_length=8))
    assert got.trace.commit_step[0].tolist() == [0, 2, 0, -1, -1, 1, 1, 2]


@pytest.mark.parametrize("spec", ["fixed:steps=4,order=random", "random+fixed:steps=4"])
def test_a_random_order_is_drawn_once(spec: str) -> None:
    drawn = Keyed((100,)).uniform(np.array([0]), np.array([0]), torch.arange(8)[None], "order")[0]
    rank = drawn.argsort(descending=True).argsort()
    got = run(table(LAWS), spec, request([[MASK] * 8], [0], block_length=8))
    assert got.trace.commit_step[0].tolist() == (rank // 2).tolist()


def test_every_order_comes_up() -> None:
    rows = [[MASK] * 3] * 600
    got = run(table(LAWS[:3]), "fixed:order=random", request(rows, [0] * 600, block_length=3))
    found, counts = np.unique(got.trace.commit_step, axis=0, return_counts=True)
    assert len(found) == 6
    assert (abs(counts - 100) < 5 * 100**0.5).all()


def proposal(name: str, **options: float) -> Proposal:
    """What a proposer says of the eight positions, of which the last is not eligible."""
    rows = (torch.tensor([MASK] * 7 + [0]),)
    canvas = Canvas(rows, (0,), mask_id=MASK, pad_id=4, block_length=8)
    asked = request([rows[0].tolist()], [0], block_length=8, **options)
    logits = LAWS.log()[None]
    return build_method(parse(name).parts[0]).propose(
        Evidence(DenseDistribution(logits), canvas.window, canvas.eligible, asked), canvas
    )


ENTROPY = [0.2535, 1.1125, 0.4014, 1.3799, 0.0670, 0.5875, 0.4315]


@pytest.mark.parametrize(
    ("name", "scores"),
    [
        ("confidence", SURE[:7]),
        ("margin", [(4 * p - 1) / 3 for p in SURE[:7]]),
        ("entropy", [-h for h in ENTROPY]),
    ],
)
def test_scores_by_hand(name: str, scores: list[float]) -> None:
    found = proposal(name)
    assert found.tokens[0].tolist() == list(TOKENS)
    assert found.score[0, :7].tolist() == pytest.approx(scores, abs=1e-3)
    assert found.score[0, 7] == -torch.inf  # not eligible
    assert found.score.dtype == torch.float32


def test_the_raw_score_is_blind_to_the_filter_and_the_filtered_one_is_not() -> None:
    """top_k=2 leaves the best token and one of the others: .95 becomes .95 / (.95 + .05 / 3) once ties are cut."""
    options = {"temperature": 0.5}
    raw, shaped = (proposal(f"confidence:of={of}", **options) for of in ("raw", "filtered"))
    assert torch.equal(raw.tokens, shaped.tokens)
    sharp = LAWS[:7, :4] ** 2 / (LAWS[:7, :4] ** 2).sum(-1, keepdim=True)
    for place in range(7):
        token = int(raw.tokens[0, place])
        assert raw.score[0, place].item() == pytest.approx(float(LAWS[place, token]), abs=1e-6)
        assert shaped.score[0, place].item() == pytest.approx(float(sharp[place, token]), abs=1e-6)
    entropy = -(sharp * sharp.log()).sum(-1)
    found = proposal("entropy:of=filtered", **options)
    assert found.score[0, :7].tolist() == pytest.approx((-entropy).tolist(), abs=1e-5)
    margin = sharp.sort(-1).values
    found = proposal("margin:of=filtered", **options)
    assert found.score[0, :7].tolist() == pytest.approx((margin[:, 3] - margin[:, 2]).tolist(), abs=1e-5)


def test_random_scores_are_keyed_by_position_alone() -> None:
    first, hot = proposal("random"), proposal("random", temperature=1.0)
    assert torch.equal(first.score, hot.score)
    assert len(set(first.score[0].tolist())) == 8
    other = proposal("random", seeds=[3])
    assert not torch.equal(first.score, other.score)


def test_a_select_takes_the_score_of_whatever_proposes() -> None:
    for proposer in ("confidence", "margin", "entropy", "random"):
        sampler = resolve(f"{proposer}+sequential")
        found = proposal(proposer)
        chosen = sampler.select.select(found, None, None)
        assert chosen.nonzero().tolist() == [[0, int(found.score[0].argmax())]]
