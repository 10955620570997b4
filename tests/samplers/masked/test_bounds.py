"""`bound` and `cumulative`, the threshold that falls as its block fills, and an entropy threshold with a floor."""

from __future__ import annotations

import pytest

from pardec.models.errors import SpecError
from pardec.samplers.registry import resolve
from tests.reference import naive_selects as naive
from tests.samplers.heldout_answers import answered
from tests.samplers.masked.test_selects import LAWS, MASK, TOKENS
from tests.samplers.parity import FAMILIES, agree, agree_recorded
from tests.samplers.toys import fill, prompts, request, run, same, table, toy

# Ranked .99 .95 .91 .901 .85 .60 .45 .30, at 4 0 2 6 5 1 7 3
STEPS = {
    # 1 - 2 / (r + 2) = 0 .333 .5 .6 .667 .714: all but the last three; of .60 .45 .30 then two, and .30 alone
    "bound:least=0.4": [0, 1, 0, 2, 0, 0, 0, 1],
    "bound:least=0.5": [0, 1, 0, 3, 0, 0, 0, 2],
    "bound:f=0": [0, 2, 0, 4, 0, 1, 0, 3],  # a threshold of .9
    "bound:f=0,tau=1": [1, 5, 2, 7, 0, 4, 3, 6],
    "bound:f=100,least=0": [0] * 8,
    "cumulative": [0, 4, 1, 6, 0, 3, 2, 5],  # .99 .94 | .91 .82 | .901 .766 | ...
    "cumulative:tau=0.7": [0, 2, 0, 4, 0, 1, 0, 3],  # .99 .94 .856 .771 .655
    "cumulative:tau=1": [1, 5, 2, 7, 0, 4, 3, 6],
    "cumulative:tau=0": [0] * 8,
    # .9 | with four of eight left .9 (1 - .4 / 2) = .72 | three .675 | two .63 | one .585
    "threshold:relax=0.4": [0, 2, 0, 4, 0, 1, 0, 3],
    "threshold:relax=0.7": [0, 1, 0, 3, 0, 1, 0, 2],  # .9 | .585 | .4275 | .349
    "threshold:tau=0.94,relax=1": [0, 2, 1, 3, 0, 1, 1, 2],  # .94 | .705 | .3525 | .1175
    # Entropies .067 .254 .401 .432 .588 1.113 1.292 1.380 nats
    "entropy_threshold:floor=linear,steps=2": [0, 1, 0, 1, 0, 1, 0, 1],
    "entropy_threshold:floor=linear,steps=4": [0, 2, 0, 3, 0, 1, 0, 2],  # four are low | 4/3 | 3/2 | the last one
    "entropy_threshold:tau=0.3,floor=linear,steps=3": [0, 1, 0, 2, 0, 1, 1, 2],  # 8/3, 5/2, 2: 3, 3, 2
    "entropy_threshold:tau=0,floor=cosine,steps=2": [0, 1, 1, 1, 0, 1, 1, 1],  # 8 (1 - cos 45°) = 2.3
}


@pytest.mark.parametrize("spec", STEPS)
def test_eight_tokens_by_hand(spec: str) -> None:
    got = run(table(LAWS), spec, request([[MASK] * 8], [0], block_length=8))
    assert got.trace.commit_step[0].tolist() == STEPS[spec]
    assert got.tokens[0].tolist() == list(TOKENS)


def test_the_share_that_is_open_is_that_of_the_block() -> None:
    """Two of four are left in each block after .95 and .91, or .99 and .901: .9 (1 - .8 / 2) = .54, then .36."""
    got = run(table(LAWS), "threshold:relax=0.8", request([[MASK] * 8], [0], block_length=4))
    assert got.trace.commit_step[0].tolist() == [0, 1, 0, 2, 3, 4, 3, 5]
    got = run(table(LAWS), "threshold:relax=0.8", request([[0, MASK, MASK, 0]], [0], block_length=4))
    assert got.trace.commit_step[0].tolist() == [-1, 0, 0, -1]  # what is given counts as committed


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tau", [0.9, 0.3])
@pytest.mark.covers(1)
def test_they_are_the_naive_rules(family: str, tau: float) -> None:
    length = {} if "sdar" in family else {"block_length": 8}
    for least, f in ((0.45, 2.0), (0.2, 3.0)):
        rule = naive.bound(tau, least, f)
        agree(f"bound:tau={tau},least={least},f={f}", lambda rule=rule: rule, family=family, **length)
    agree(f"cumulative:tau={tau}", lambda: naive.cumulative(tau), family=family, **length)
    agree(f"threshold:tau={tau},relax=0.4", lambda: naive.Relaxing(tau, 0.4), family=family, **length)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("floor", ["linear", "cosine"])
def test_a_floor_is_the_naive_rule(family: str, floor: str) -> None:
    """In one block, whose steps are all there are."""
    if "sdar" not in family:
        spec = f"entropy_threshold:tau=1.5,floor={floor},steps=5"
        agree(spec, lambda: naive.EntropyFloor(1.5, 5, cosine=floor == "cosine"), family=family, block_length=14)


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_they_are_the_naive_rules_on_recorded_checkpoints(name: str) -> None:
    agree_recorded(name, "bound", lambda: naive.bound(0.9, 0.45, 2.0))
    agree_recorded(name, "cumulative:tau=0.5", lambda: naive.cumulative(0.5))
    agree_recorded(name, "threshold:tau=0.9,relax=0.4", lambda: naive.Relaxing(0.9, 0.4))
    spec = "entropy_threshold:tau=1.5,floor=cosine,steps=6"
    agree_recorded(name, spec, lambda: naive.EntropyFloor(1.5, 6, cosine=True), block_length=20)


def test_what_they_reduce_to() -> None:
    model, given, new = toy("dream", sharp=1.2), prompts((4, 7, 2)), (9, 5, 11)
    for spec, other in (
        ("bound:f=0,tau=0.4", "threshold:tau=0.4"),
        ("bound:f=2,tau=1,least=0", "factor:f=2"),
        ("threshold:tau=0.4,relax=0", "threshold:tau=0.4"),
        ("threshold:tau=0.3,fall=0.2,relax=0", "threshold:tau=0.3,fall=0.2"),
        ("cumulative:tau=1", "sequential"),
        ("entropy_threshold:tau=1,floor=linear,steps=9999", "entropy_threshold:tau=1"),
    ):
        one, two = (fill(model, each, given, new) for each in (spec, other))
        assert all(same(one, row, two, row) for row in range(3)), spec


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("bound:tau=1.5", r"tau must lie in \[0, 1\], got 1.5"),
        ("bound:least=-1", r"least must lie in \[0, 1\], got -1.0"),
        ("bound:f=-1", "f must be at least 0, got -1.0"),
        ("cumulative:tau=2", r"tau must lie in \[0, 1\], got 2.0"),
        ("threshold:relax=2", r"relax must lie in \[0, 1\], got 2.0"),
        ("entropy+threshold:tau=-1,relax=0.3", "relax=0.3 would raise a negative tau=-1.0"),
        ("entropy_threshold:floor=steep", "floor is one of linear, cosine, none, got 'steep'|floor"),
        ("entropy_threshold:steps=0", "steps must be at least 1, got 0"),
    ],
)
def test_bad_parameters(spec: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        resolve(spec)


@pytest.mark.seeds("arXiv:2601.17917")
def test_a_threshold_that_falls_as_the_block_fills_takes_fewer_forwards_and_answers_stay_right() -> None:
    each = {relax: answered("tiny-dream", "arithmetic", f"threshold:relax={relax}", 12) for relax in (0, 0.3, 0.8)}
    forwards = {relax: sum(result.nfe) for relax, (_, result) in each.items()}
    assert forwards[0.8] < forwards[0]
    assert forwards[0.3] <= forwards[0]
    assert each[0.3][0] >= each[0][0] - 1
