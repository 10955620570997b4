#!/usr/bin/env bash
# accelerate: an offloaded model is used as any other: it has parameters, a state dict, and a forward. Changing a weight
# in place, to scale it, to merge an adapter, to zero a row, raises no error and changes nothing, since what is changed
# has no memory. Buffers that forward counts in, such as statistics or a cache, are lost after each forward where they
# are offloaded too, and those that were not are set back to what they were when the hooks are removed. A model that
# fits into memory, and is not offloaded, follows all of it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 accelerate==1.15.0
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys

import accelerate
import torch
from accelerate import disk_offload
from accelerate.hooks import remove_hook_from_submodules
from torch import nn


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)
        self.register_buffer("calls", torch.zeros(()))

    @torch.no_grad()
    def forward(self, x):
        self.calls += 1
        return self.layer(x), self.calls.clone()


def run(name, offload_buffers=None):
    """Outputs before and after all weights are doubled, the counts of four calls, and the count afterwards."""
    torch.manual_seed(0)
    model, x = Counting(), torch.ones(1, 4)
    if offload_buffers is not None:
        disk_offload(model, f"{sys.argv[1]}/{name}", execution_device="cpu", offload_buffers=offload_buffers)
    before, first = model(x)
    with torch.no_grad():
        model.layer.weight.mul_(2)
    after, second = model(x)
    counts = [first, second, model(x)[1], model(x)[1]]
    remove_hook_from_submodules(model)
    return round((after / before).mean().item(), 3), [int(count) for count in counts], int(model.calls)


print("accelerate", accelerate.__version__, "torch", torch.__version__)
print("guess: an offloaded model does what the model in memory does, or raises")
seen = {"in memory": run("memory"), "on disk": run("disk", False), "on disk with its buffers": run("all", True)}
for kind, (ratio, counts, afterwards) in seen.items():
    print(f"seen: {kind}: doubled weights multiply the output by {ratio}; calls {counts}, {afterwards} in the end")
expected = [(2.0, [1, 2, 3, 4], 4), (1.0, [1, 2, 3, 4], 0), (1.0, [1, 1, 1, 1], 0)]
sys.exit(list(seen.values()) != expected)
PY
