#!/usr/bin/env bash
# outlines-core: what a guide allows depends on how a text is cut into tokens. A token that leaves a place where the text
# may end, and does not itself lead to such a place, is left out: "." after "0", where ".5" as one token is allowed. With
# the tokenizers of most models, which have the point and the digits apart, a {"type": "number"} is never a fraction,
# though the regular expression has it. Whoever tests the expression, or one token at a time, does not see it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check outlines-core==0.2.14
"$folder/venv/bin/python" - <<'PY'
import re
import sys
from importlib import metadata

from outlines_core import Index, Vocabulary
from outlines_core.json_schema import build_regex_from_schema

pattern = build_regex_from_schema('{"type": "number"}')
tokens = [*"0123456789-", ".", ".5"]
index = Index(pattern, Vocabulary(len(tokens), {token: [at] for at, token in enumerate(tokens)}))
zero = index.get_next_state(index.get_initial_state(), tokens.index("0"))
allowed = [tokens[at] for at in sorted(index.get_allowed_tokens(zero)) if at < len(tokens)]
print("outlines-core", metadata.version("outlines-core"))
print("the expression matches 0.5:", bool(re.fullmatch(pattern, "0.5")))
print("guess: after 0 both . and .5 are allowed")
print("seen: allowed after 0:", allowed)
sys.exit(not (re.fullmatch(pattern, "0.5") and allowed == [".5"]))
PY
