#!/usr/bin/env bash
# math-verify: decimal numbers are equal if they agree to six digits: 1/3 and 0.333333 do, 1/3 and 0.333 do not. The
# digits are those after the point, not the significant ones: numbers below half a millionth are all equal, also with
# the other sign. The charge of an electron, 1.6e-19, is accepted where its mass, 9.1e-31, is the answer, and a reward
# that is computed so pays for any small number. 10^{-7} against 2*10^{-7} is told apart: it depends on a decimal point.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check math-verify==0.9.0 latex2sympy2-extended==1.11.0
"$folder/venv/bin/python" - <<'PY'
import sys
from importlib.metadata import version

from math_verify import parse, verify

pairs = {
    (r"$9.1\times 10^{-31}$", r"$1.6\times 10^{-19}$"): True,
    (r"$6.6\times 10^{-34}$", r"$-6.6\times 10^{-34}$"): True,
    ("$0.0000016$", "$0.0000024$"): True,
    (r"$10^{-7}$", r"$2\cdot 10^{-7}$"): False,
    (r"$9.1\times 10^{31}$", r"$1.6\times 10^{31}$"): False,
    (r"$\frac{1}{3}$", "$0.333333$"): True,
    (r"$\frac{1}{3}$", "$0.333$"): False,
}
print("math-verify", version("math-verify"))
print("guess: 1.6e-19 is no answer where 9.1e-31 is expected, nor is a number with the other sign")
seen = {}
for expected, answer in pairs:
    seen[expected, answer] = verify(parse(expected), parse(answer))
    print(f"expected {expected}, answered {answer}: {'equal' if seen[expected, answer] else 'not equal'}")
sys.exit(seen != pairs)
PY
