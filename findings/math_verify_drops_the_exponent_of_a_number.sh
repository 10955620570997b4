#!/usr/bin/env bash
# math-verify: 1e-5 is what Python prints for a small number, and what models write that were trained on code. The text
# is read as 1, and the exponent is dropped: 1e-5, 1e-7 and 1e9 are all equal, and none is equal to 0.00001. In dollars
# the e is Euler's number: $2e3$ is 2 times e times 3, the same as $6e$. A reward that is computed so pays for any
# exponent, and denies a right answer. 2*10^3 and 2\times10^{3} are read right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check math-verify==0.9.0 latex2sympy2-extended==1.11.0
"$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

from math_verify import parse, verify

pairs = [
    ("1e-5", "1e-7"),
    ("1e-5", "0.00001"),
    ("3e8", "3"),
    ("$2e3$", "$6e$"),
    ("$2e3$", "$2000$"),
    ("$2\\times10^3$", "$2000$"),
]
print("math-verify", metadata.version("math-verify"))
print("guess: 1e-5 is 0.00001, and no other number")
seen = [verify(parse(one), parse(other)) for one, other in pairs]
for (one, other), equal in zip(pairs, seen):
    print(
        f"seen: {one} and {other}: {'equal' if equal else 'not equal'}; read as {parse(one)[0]} and {parse(other)[0]}"
    )
sys.exit(seen != [True, False, True, True, False, True])
PY
