#!/usr/bin/env bash
# math-verify: the unit of an answer is dropped before it is compared, in text and in LaTeX: 5 km is 5 m, 5 dollars are
# 5 cents, and one right in another unit, 5000 m, is wrong. A percent sign may be followed or not: 50% equals 0.5 and
# 50, which are not equal to each other, so that 1% is a right answer where 1 is asked for, and 100% too. The index of a
# number system goes as well: 101 in base 2 is 101 in base 3. Equality is thus no reason for a reward where the unit is
# the point.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check math-verify==0.9.0 latex2sympy2-extended==1.11.0
"$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

from math_verify import parse, verify

wrong = [
    ("5 km", "5 m"),
    ("$5\\text{ km}$", "$5\\text{ m}$"),
    ("5 dollars", "5 cents"),
    ("$101_2$", "$101_3$"),
    ("1", "1%"),
]
right = [("5 km", "5000 m"), ("$101_2$", "$5$")]
percent = [("50%", "0.5"), ("50%", "50"), ("50", "0.5"), ("1", "100%")]


def equal(pairs):
    found = [verify(parse(one), parse(other)) for one, other in pairs]
    for (one, other), same in zip(pairs, found):
        print(f"seen: {one} and {other}: {'equal' if same else 'not equal'}")
    return found


print("math-verify", metadata.version("math-verify"))
print("guess: equal are", right, "and percentages with their fractions; not equal are", wrong)
sys.exit((equal(wrong), equal(right), equal(percent)) != ([True] * 5, [False, False], [True, True, False, True]))
PY
