#!/usr/bin/env bash
# compressed-tensors: which layers a recipe quantizes, or leaves out, is said by names and by patterns with "re:". A
# pattern has to match from the beginning of a name, and may end before it does: "re:q_proj" names no layer at all, and
# "re:.*layers.1" names layers 1, 10, 11 and 12. A name without "re:" has to be the whole one, so that "q_proj", which
# PEFT and others take for every q_proj, names none. Nothing is said of a pattern without a layer: an ignore list with
# one quantizes what it was meant to protect.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 compressed-tensors==0.20.1
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

from compressed_tensors.utils.match import match_named_modules
from torch import nn

model = nn.ModuleDict({"layers": nn.ModuleList(nn.ModuleDict({"q_proj": nn.Linear(4, 4)}) for _ in range(13))})
guesses = {
    "re:.*layers.1": [1],
    "re:q_proj": list(range(13)),
    "q_proj": list(range(13)),
    "re:.*q_proj": list(range(13)),
    "layers.1.q_proj": [1],
}


def layers(target):
    names = [name for name, module in match_named_modules(model, [target]) if isinstance(module, nn.Linear)]
    return [int(name.split(".")[1]) for name in names]


print("compressed-tensors", metadata.version("compressed-tensors"))
seen = {target: layers(target) for target in guesses}
for target, guess in guesses.items():
    print(f"guess: {target} names the layers {guess}")
    print(f"seen: {seen[target]}")
sys.exit(list(seen.values()) != [[1, 10, 11, 12], [], [], list(range(13)), [1]])
PY
