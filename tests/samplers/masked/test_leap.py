"""`leap`: the confident run of a sliding window, by hand, compared with plain rules; its end by margins."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import pardec
from pardec.samplers.masked.select.leap import Leap
from tests.reference.naive_selects import Distributions
from tests.samplers.eight_tokens import LAWS
from tests.samplers.eight_tokens import MASK as LAST
from tests.samplers.parity import FAMILIES, agree
from tests.samplers.spec_checks import commits_at, refused_specs
from tests.samplers.toys import fill, prompts, request, same, table, toy
from tests.samplers.toys import run as decode

# Probabilities .95 .60 .91 .30 .99 .85 .901 .45 and tokens 2 0 1 3 3 0 2 1; half of the eight positions are a window.
# Margins ln(3 p / (1 - p)), the other three tokens being alike: 4.04 1.50 3.41 .25 5.69 2.83 3.31 .90
STEPS = {
    "leap": [0, 1, 2, 3, 4, 4, 4, 5],  # .95 | .60 alone | .91 | .30 alone | .99 .85 .901 | .45 alone
    "leap:tau=0.5": [0, 0, 0, 1, 2, 2, 2, 3],
    "leap:tau=0": [0] * 4 + [1] * 4,
    "leap:tau=0,window=3": [0] * 3 + [1] * 3 + [2] * 2,
    "leap:tau=0.5,window=2": [0, 0, 1, 2, 3, 3, 4, 5],  # .95 .60 | .91 | .30 alone | .99 .85 | .901 | .45 alone
    # Of 8, 2 to 4: m_2 = 1.50 holds for 3. Of 5, 2: m_2 = .25. Of 3 and 2, one.
    "leap:border=margin,back=0": [0, 0, 0, 1, 1, 2, 3, 4],
    # Token 0 ends the first run after two. Of 6, 2 to 3: m_2 = .25 holds for 3, and none of them is token 0.
    "leap:border=margin,back=2,delimiters=0": [0, 0, 1, 1, 1, 2, 3, 4],
    # Token 2 is the first of the first run's three: two tokens after it may be cut, one may not.
    "leap:border=margin,back=2,delimiters=2": [0, 1, 1, 2, 2, 3, 4, 5],
    "leap:border=margin,back=1,delimiters=2": [0, 0, 0, 1, 1, 2, 3, 4],
}


test_eight_tokens_by_hand = commits_at(STEPS)


def test_the_window_of_an_odd_number_is_the_larger_half_and_each_row_has_its_own() -> None:
    got = decode(table(LAWS), "leap:tau=0", request([[LAST] * 7, [LAST] * 4], [0, 0], block_length=8))
    assert got.trace.commit_step[:, :7].tolist() == [[0] * 4 + [1] * 3, [0, 0, 1, 1, -1, -1, -1]]


def test_a_candidate_as_likely_as_tau_belongs_to_the_run() -> None:
    halves = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0]).expand(4, 5)
    for tau, forwards in ((0.5, 1), (0.51, 4)):
        asked = request([[4] * 4], [0], block_length=4)
        assert decode(table(halves), f"leap:tau={tau},window=4", asked).nfe == (forwards,)


def run(tau: float, window: int) -> Callable[[Distributions], list[int]]:
    """The run from the first open position, which is always committed."""

    def rule(distributions: Distributions) -> list[int]:
        first, chosen = min(distributions), list[int]()
        for place in sorted(distributions):
            if place >= first + window or distributions[place].max() < tau:
                break
            chosen.append(place)
        return chosen or [first]

    return rule


def border(distributions: Distributions) -> list[int]:
    """The strictest threshold on margins whose run is a quarter of the open positions long, at most half of them."""
    places, lowest, margins = sorted(distributions), math.inf, list[float]()
    for place in places:
        second, largest = np.sort(distributions[place])[-2:]
        lowest = min(lowest, math.log(largest) - math.log(second))
        margins.append(lowest)
    least, most = math.ceil(len(places) / 4), max(len(places) // 2, 1)
    return [place for place, margin in zip(places[:most], margins, strict=False) if margin >= margins[least - 1]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tau", [0.3, 0.6])
@pytest.mark.parametrize("window", [2, 5])
@pytest.mark.covers(2)
def test_it_is_the_plain_run(family: str, tau: float, window: int) -> None:
    length = {} if "sdar" in family else {"block_length": 16}
    agree(f"leap:tau={tau},window={window}", lambda: run(tau, window), family=family, **length)


@pytest.mark.parametrize("family", FAMILIES)
def test_its_border_is_the_plain_one(family: str) -> None:
    length = {} if "sdar" in family else {"block_length": 16}
    agree("leap:border=margin,back=0", lambda: border, family=family, **length)


def test_a_window_of_everything_is_contiguous() -> None:
    model, given = toy("llada", sharp=1.2), prompts((4, 7, 2))
    one, other = (fill(model, spec, given, (9, 5, 11)) for spec in ("leap:tau=0.5,window=99", "contiguous:tau=0.5"))
    assert all(same(one, row, other, row) for row in range(3))


def test_delimiters_are_those_of_the_tokenizer() -> None:
    model = pardec.load("tiny-dream", device="cpu")
    found = Leap(border="margin").fit(model.network).delimiters
    assert found is not None
    assert {model.tokenizer.decode([int(part)]) for part in found.split("-")} >= {";", "\n"}
    assert Leap().fit(model.network).delimiters is None


test_bad_parameters = refused_specs(
    [
        ("leap:delimiters=a", "leap: delimiters must be token ids joined by -, got 'a'"),
    ]
)
