"""`leftmost`: candidates from left to right."""

from __future__ import annotations

from tests.samplers.eight_tokens import steps_of
from tests.samplers.spec_checks import commits_at
from tests.samplers.toys import fill, prompts, request, run, same, toy

test_eight_tokens_by_hand = commits_at(
    [
        ("leftmost+sequential", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("leftmost+fixed:steps=4", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("leftmost+timesteps:steps=4", [0, 1, 1, 2, 2, 3, 3, 3]),
        ("leftmost+threshold:tau=0", [0, 1, 2, 3, 4, 5, 6, 7]),  # no threshold on a probability is ever passed
        ("leftmost+confident:tau=0,steps=64", [0, 1, 2, 3, 4, 5, 6, 7]),
    ]
)


def test_what_is_given_is_passed_over() -> None:
    assert steps_of("leftmost+sequential", row=[6, 0, 6, 6, 0, 0, 6, 6]) == [0, -1, 1, 2, -1, -1, 3, 4]


def test_the_first_position_of_all_is_no_exception() -> None:
    """The score of position 0 is below 0 too."""
    got = run(toy(sharp=1.2), "leftmost+threshold:tau=0", request([[19] * 4], [0]))
    assert got.trace.commit_score[0, :4].tolist() == [-1, -2, -3, -4]


def test_it_is_greedy_decoding_token_by_token() -> None:
    """One forward per token for any block length, since the order does not depend on it."""
    given = prompts((3, 5))
    one = fill(toy("dream", sharp=1.2), "leftmost+sequential", given, (9, 6))
    other = fill(toy("dream", sharp=1.2), "leftmost+sequential", given, (9, 6), block_length=16)
    assert one.nfe == (9, 6)
    assert (one.tokens == other.tokens).all()
    assert all(same(one, row, other, row) for row in range(2))
