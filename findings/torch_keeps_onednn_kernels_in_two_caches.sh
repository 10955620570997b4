#!/usr/bin/env bash
# torch: a bfloat16 matmul on a CPU goes to oneDNN, which keeps what it makes for each number of rows. Two caches keep it,
# each up to 1,024 shapes: oneDNN's own, which its documentation names, and that of the layer which PyTorch puts between.
# A server whose batches vary grows by hundreds of MiB around one matrix of half a MiB, which looks like a leak; bounding
# the documented cache alone frees less than half of that, and bounding both all of it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/grow.py" <<'PY'
import torch

torch.set_num_threads(1)
weight, x = (torch.randn(rows, 512, dtype=torch.bfloat16) for rows in (512, 2048))


def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20


with torch.inference_mode():
    for rows in range(1, 33):
        torch.nn.functional.linear(x[:rows], weight)
    before = resident()
    for rows in range(33, 1057):
        torch.nn.functional.linear(x[:rows], weight)
print(round(resident() - before))
PY
python="$folder/venv/bin/python"
plain=$("$python" "$folder/grow.py")
one=$(ONEDNN_PRIMITIVE_CACHE_CAPACITY=16 "$python" "$folder/grow.py")
both=$(ONEDNN_PRIMITIVE_CACHE_CAPACITY=16 LRU_CACHE_CAPACITY=16 "$python" "$folder/grow.py")
"$python" -c 'import torch; print("torch", torch.__version__, torch.backends.cpu.get_cpu_capability())'
echo "guess: ONEDNN_PRIMITIVE_CACHE_CAPACITY bounds what a process keeps for the shapes of its matmuls"
echo "MiB gained over 1,024 numbers of rows: $plain; with that variable at 16: $one; with LRU_CACHE_CAPACITY=16 as well: $both"
((plain > 200 && one > 100 && both < 60))
