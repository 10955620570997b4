#!/usr/bin/env bash
# safetensors: PyTorch computes a conjugate, and the negative that comes with its imaginary part, only when it is read:
# until then the tensor is the old memory with a mark. save_file writes the memory and not the mark, so that a complex
# tensor is read back with the other sign of its imaginary part, without an error. contiguous(), which safetensors asks
# for when it refuses a tensor, leaves the mark where nothing has to be moved; with mH, the transposed conjugate, it is
# refused first and right afterwards. clone() and resolve_conj() compute the values, and torch.save writes them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 safetensors==0.8.0 numpy==2.4.6 packaging==26.4
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys

import safetensors
import torch
from safetensors.torch import load_file, save_file

z = torch.polar(torch.ones(2, 2), torch.tensor([[0.1, 0.2], [0.3, 0.4]]))
cases = {
    "z": z,
    "z.conj()": z.conj(),
    "z.conj().clone()": z.conj().clone(),
    "z.conj().contiguous()": z.conj().contiguous(),
    "z.mH.contiguous()": z.mH.contiguous(),
    "torch.conj_physical(z)": torch.conj_physical(z),
    "z.conj().resolve_conj()": z.conj().resolve_conj(),
    "z.conj() * 1": z.conj() * 1,
}


def kept(tensor, save, load):
    save({"z": tensor}, sys.argv[1] + "/z")
    return torch.equal(load(sys.argv[1] + "/z")["z"], tensor)


print("safetensors", safetensors.__version__, "torch", torch.__version__)
print("guess: what is read is what was saved")
seen = {name: (kept(z, save_file, load_file), kept(z, torch.save, torch.load)) for name, z in cases.items()}
for name, (by_safetensors, by_torch) in seen.items():
    print(f"seen: {name}: kept by safetensors {by_safetensors}, by torch.save {by_torch}")
wrong = [name for name, (by_safetensors, _) in seen.items() if not by_safetensors]
print("seen: wrong:", wrong)
sys.exit(not all(by_torch for _, by_torch in seen.values()) or wrong != ["z.conj()", "z.conj().contiguous()"])
PY
