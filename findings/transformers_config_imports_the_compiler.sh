#!/usr/bin/env bash
# transformers and PyTorch: two places that seem to cost nothing import PyTorch's compiler, with SymPy, and with Triton
# where that is installed: the config class of a model (LlamaConfig, a description of sizes), and an embedding that is
# made on the meta device, where no number is ever computed. Each adds 80 to 150 MB of resident memory and about a
# second to a process that compiles nothing. A tokenizer pays as well: AutoTokenizer makes the config of the model in
# whose folder it is.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
cat >"$folder/cost.py" <<'PY'
import sys
import time

import torch
import transformers
from transformers import PreTrainedConfig

HEAVY = ("torch._dynamo", "triton", "sympy")


def resident():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


before, start = resident(), time.perf_counter()
if sys.argv[1] == "meta":
    with torch.device("meta"):
        torch.nn.Embedding(8, 4)
elif sys.argv[1] == "config":
    from transformers import LlamaConfig
else:
    PreTrainedConfig()
imported = [name for name in HEAVY if name in sys.modules]
print("torch", torch.__version__, "transformers", transformers.__version__)
print(f"{sys.argv[1]}: {resident() - before:.0f} MB, {time.perf_counter() - start:.1f} s, imported: {imported}")
sys.exit(0 if bool(imported) == (sys.argv[1] != "base") else 1)
PY
echo "guess: neither a config class nor a module without numbers imports a compiler"
for case in base config meta; do
    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" "$folder/cost.py" "$case"
done
