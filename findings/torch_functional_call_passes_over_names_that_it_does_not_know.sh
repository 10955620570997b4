#!/usr/bin/env bash
# PyTorch: torch.func.functional_call runs a module with weights that it is given, as for an average of weights, an
# ensemble, or gradients by torch.func.grad. load_state_dict refuses a name that the module does not have, and names those
# that are missing. functional_call passes over both, and takes the module's own weights in their place: those of a norm
# that are named gamma and beta, as in older checkpoints, and a layer that the file lacks. The outputs are of a mixture
# of two models, and the gradients of such a name are zeros, which reads like a frozen weight. A name with another prefix
# is an error about an attribute. Nothing is said of the rest; strict=True refuses both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
from torch.func import functional_call, grad

torch.manual_seed(0)
model, average = (torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 1)) for _ in range(2))
with torch.no_grad():
    average[0].weight.normal_()
x = torch.randn(3, 4)
weights = {name: weight.detach() for name, weight in average.named_parameters()}
older = {"0.weight": "0.gamma", "0.bias": "0.beta"}
dicts = {
    "all names": weights,
    "older names": {older.get(name, name): weight for name, weight in weights.items()},
    "a layer less": {name: weight for name, weight in weights.items() if name.startswith("1")},
}
mixture = torch.nn.Sequential(model[0], average[1])(x)


def takes(call, *values, **options):
    try:
        call(*values, **options)
    except RuntimeError:
        return False
    return True


print("torch", torch.__version__)
print("guess: the outputs are those of the average, or the names are refused, as by load_state_dict")
seen = {}
for name, given in dicts.items():
    found = functional_call(model, given, (x,))
    slopes = grad(lambda values: functional_call(model, values, (x,)).sum())(given)
    zeros = [key for key, slope in slopes.items() if not slope.abs().max()]
    whose = "the average" if torch.equal(found, average(x)) else "a mixture" if torch.equal(found, mixture) else "others"
    loaded = takes(torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 1)).load_state_dict, given)
    seen[name] = (whose, zeros, takes(functional_call, model, given, (x,), strict=True), loaded)
    print(f"{name}: outputs of {whose}, gradients of zero {zeros}; strict=True {seen[name][2]}, load_state_dict {loaded}")
sys.exit(
    seen != {
        "all names": ("the average", [], True, True),
        "older names": ("a mixture", ["0.gamma", "0.beta"], False, False),
        "a layer less": ("a mixture", [], False, False),
    }
)  # fmt: skip
PY
