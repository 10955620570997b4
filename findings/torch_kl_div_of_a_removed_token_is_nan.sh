#!/usr/bin/env bash
# PyTorch: a filter or a grammar removes a token from two distributions, so that both give it probability 0, and it adds
# nothing to their divergence. F.kl_div, which takes the logarithm of one of them, gives NaN: 0 times -inf.
# log_target=True is described as the way to avoid numerical issues of a logarithm, and gives NaN as well. Distillation
# and penalties against a reference model under a filter lose the whole batch by one such token. kl_divergence of two
# Categorical gives the number.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
from torch.distributions import Categorical, kl_divergence
from torch.nn import functional

p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.75, 0.0])
kept = (p[:2] * (p[:2] / q[:2]).log()).sum().item()
seen = {
    "kl_div(log q, p)": functional.kl_div(q.log(), p, reduction="sum"),
    "kl_div(log q, log p, log_target)": functional.kl_div(q.log(), p.log(), reduction="sum", log_target=True),
    "kl_divergence of Categorical": kl_divergence(Categorical(logits=p.log()), Categorical(logits=q.log())),
    "kl_div without the removed token": functional.kl_div(q[:2].log(), p[:2], reduction="sum"),
}
seen = {name: value.item() for name, value in seen.items()}
print("torch", torch.__version__)
print(f"guess: a token that neither distribution has adds nothing: {kept:.4f} in each case")
for name, value in seen.items():
    print(f"seen: {name}: {value:.4f}")
wrong = [value != value for value in seen.values()]
right = [abs(value - kept) < 1e-6 for value in seen.values()]
sys.exit(wrong != [True, True, False, False] or right != [False, False, True, True])
PY
