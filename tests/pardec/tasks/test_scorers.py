"""The scorers by name: the number that ends a text, and which answers count as equal."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pardec.tasks import Problem
from pardec.tasks.scorers import SCORERS, normalised, number, scorer


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("42", "42"),
        ("It is 42.", "42"),
        ("3 * 14 = 42, not 41", "41"),
        ("1,234,567.50 in all", "1234567.50"),
        ("of 12,34", "34"),
        ("1, 2, 3", "3"),
        ("12,345,6789", "6789"),
        ("-7", "-7"),
        ("−7 degrees", "-7"),
        ("10-4", "4"),
        ("x=-4", "-4"),
        ("+5", "5"),
        (".5", "0.5"),
        ("3.50%", "3.50"),
        ("$1,200", "1200"),
        ("-$5", "-5"),
        ("\\$5.", "5"),
        ("**42**", "42"),
        ("_42_", "42"),
        ("1e3", "1000"),
        ("1.5e-2", "0.015"),
        ("version 1.2.3", "1.2"),
        ("42kg", "42"),
        ("A4 and B12", None),
        ("none", None),
        ("", None),
        ("- . ,", None),
        ("so 6 * 7\n#### 42\n(checked 3 times)", "42"),
        ("#### $1,000", "1000"),
        ("####7", "7"),
        ("#### Step 1: 5 + 5 is 10", "10"),
        ("#### 1\n#### 2", "2"),
        ("\\boxed{42} after 7 steps", "42"),
        ("\\boxed{1} no, \\boxed{-2.5}", "-2.5"),
        ("$\\boxed{\\text{about } 1{,}234}$ or 5", "1234"),
        ("\\boxed{1\\,234}", "1234"),
        ("\\boxed {\\$3}", "3"),
        ("#### 3 and \\boxed{4}", "4"),
        ("\\boxed{4} and #### 3", "3"),
        ("\\boxed{\\frac{1}{2}} is 0.5", None),
        ("\\boxed{x} is 5", None),
        ("\\boxed{42", "42"),
    ],
)
def test_the_number_a_text_ends_on(text: str, found: str | None) -> None:
    assert number(text) == (None if found is None else Decimal(found))


@pytest.mark.parametrize("text", ["9" * 200_000, "1," * 100_000, "{" * 200_000, "-" * 200_000, "#### " * 50_000])
def test_long_texts_are_read_in_no_time(text: str) -> None:
    number(text)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**12), max_value=10**12))
def test_a_number_is_found_however_it_is_written(value: Decimal) -> None:
    for shown in (f"{value}", f"{value:,}", f"{value:.5f}"):
        for text in (
            f"it is {shown}.",
            f"3 + 4 #### {shown}\n5",
            f"\\boxed{{{shown}}} (1)",
            f"**{shown}**",
            f"={shown}%",
        ):
            assert number(text) == value, text


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    found = number(text)
    assert found is None or found.is_finite()
    assert normalised(normalised(text)) == normalised(text)


def test_numbers_are_compared_by_value() -> None:
    score = scorer("number").score
    texts = ("42.00", "#### 42", "042", "420", "4.2", "none")
    assert [score(Problem("p", "", 42), text) for text in texts] == [1, 1, 1, 0, 0, 0]
    assert score(Problem("p", "", 0.1), "0.10") == 1.0
    assert score(Problem("p", "", 1e-05), "0.00001") == 1.0
    assert score(Problem("p", "", "6 * 7 is 42\n#### 42"), "it is 42") == 1.0
    assert [score(Problem("p", "", ["1", 2]), t) for t in "123"] == [1, 1, 0]
    assert score(Problem("p", "", None), "42") is None
    exact = Decimal("0.1234567890123456789012345678901234567890")
    assert score(Problem("p", "", str(exact)), f"{exact}1") == 0.0


def test_what_is_no_answer_is_refused() -> None:
    refuses = {name: made.refuses for name, made in SCORERS.items()}
    for answer in ("42", 42, 4.2, ["1", 2]):
        assert refuses["number"](answer) is None
        assert refuses["exact"](answer) is None
    for answer in (True, {}, [], [[]], ["1", True]):
        assert "neither text nor a number" in str(refuses["number"](answer))
        assert "neither text nor a number" in str(refuses["exact"](answer))
    assert refuses["number"](["1", "x"]) == "holds no number"
    assert refuses["exact"]("") is None
