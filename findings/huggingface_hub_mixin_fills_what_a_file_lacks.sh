#!/usr/bin/env bash
# huggingface_hub: PyTorchModelHubMixin gives a module of one's own from_pretrained. Unlike load_state_dict, it is not
# strict: a tensor that the file lacks, after a layer was renamed or added, keeps the random values of the new module,
# and one that the module lacks is left out; there is no error, no warning and no list. The model runs, and differs at
# each load. strict=True turns the errors on.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 huggingface_hub==2.4.0 safetensors==0.8.0 numpy==2.4.6
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
import warnings
from pathlib import Path

import huggingface_hub
import torch
from huggingface_hub import PyTorchModelHubMixin

folder = Path(sys.argv[1]) / "model"


class Old(torch.nn.Module, PyTorchModelHubMixin):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)


class Renamed(torch.nn.Module, PyTorchModelHubMixin):
    def __init__(self):
        super().__init__()
        self.body, self.lm_head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)


Old().save_pretrained(folder)
print("huggingface_hub", huggingface_hub.__version__, "torch", torch.__version__)
print("guess: a module whose head has another name than in the file is an error, or a warning")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    loaded = [Renamed.from_pretrained(folder) for _ in range(2)]
same = torch.equal(loaded[0].body.weight, loaded[1].body.weight)
random = not torch.equal(loaded[0].lm_head.weight, loaded[1].lm_head.weight)
print(f"seen: loaded with {len(said)} warnings; the body is the file's {same}, the head is new at each load {random}")
try:
    strict = type(Renamed.from_pretrained(folder, strict=True)).__name__
except RuntimeError as error:
    strict = f"error: {str(error).splitlines()[1].strip()}"
print("with strict=True:", strict)
sys.exit(not (same and random and not said and strict.startswith("error")))
PY
