#!/usr/bin/env bash
# PyTorch: torch.distributions.Categorical(probs=...) clamps probabilities to the smallest step of their type above 0
# before it takes the logarithm. A token that a filter removed has log_prob -15.9 in float32 and not -inf, and in
# bfloat16 every token below 0.8% has the same, -4.84: most of a vocabulary. Ratios of a policy and its old self are
# then 1 for those tokens, and a reward or KL that is made of them is wrong. sample uses the probabilities as they are,
# and logits= does not clamp.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
from torch.distributions import Categorical

exact = torch.tensor([0.0, 2.0**-20, 2.0**-10, 1 - 2.0**-10 - 2.0**-20])
ids = torch.arange(4)
print("torch", torch.__version__)
print(f"guess: log_prob of {exact.tolist()} is {exact.log().tolist()}, as precise as the type")
seen = {}
for kind in (torch.float32, torch.bfloat16):
    seen[kind] = Categorical(probs=exact.to(kind)).log_prob(ids).tolist()
    print(f"probs= in {kind}: {seen[kind]}")
by_logits = Categorical(logits=exact.log().to(torch.bfloat16)).log_prob(ids)
print(f"logits= in torch.bfloat16: {by_logits.tolist()}")
drawn = Categorical(probs=exact.to(torch.bfloat16)).sample((100000,))
print(f"drawn of 100,000 by probs= in bfloat16: {torch.bincount(drawn, minlength=4).tolist()}")
single, half = seen[torch.float32], seen[torch.bfloat16]
close = torch.allclose(by_logits[1:].float(), exact.log()[1:], rtol=0.01, atol=0.01)
right = close and by_logits[0] == -torch.inf and not (drawn == 0).any()
sys.exit(not (-16 < single[0] < -15.9 and half[0] == half[1] == half[2] == -4.84375 and right))
PY
