#!/usr/bin/env bash
# diffusers: a file of weights that lacks a tensor loads, and the model runs: from_pretrained writes a line to the log
# and leaves the parameter on the meta device, which has no values, and decoding gives an image all the same.
# A download that was cut off at a shard, or a renamed tensor, therefore shows as wrong pixels and not as an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 diffusers==0.42.1 transformers==5.23.0 accelerate==1.15.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
from pathlib import Path

import diffusers
import torch
from safetensors.torch import load_file, save_file

folder = Path(sys.argv[1]) / "vae"
torch.manual_seed(0)
whole = diffusers.AutoencoderKL(
    down_block_types=("DownEncoderBlock2D",) * 2,
    up_block_types=("UpDecoderBlock2D",) * 2,
    block_out_channels=(32, 32),
    latent_channels=4,
)
whole.save_pretrained(folder)
file, name = folder / "diffusion_pytorch_model.safetensors", "decoder.mid_block.resnets.0.conv1.weight"
tensors = load_file(file)
del tensors[name]
save_file(tensors, file, metadata={"format": "pt"})
cut = diffusers.AutoencoderKL.from_pretrained(folder)
latents = torch.ones(1, 4, 4, 4)
with torch.no_grad():
    right, wrong = whole.decode(latents).sample, cut.decode(latents).sample
place = dict(cut.named_parameters())[name].device
print("diffusers", diffusers.__version__)
print("guess: from_pretrained refuses the file, or decoding with a parameter that has no values fails")
print(f"seen: it loads with {name} on {place}, and decodes to an image of {wrong.device},")
print(f"      {tuple(wrong.shape)}, that differs from the right one: {not torch.equal(right, wrong)}")
sys.exit(not (place.type == "meta" and wrong.device.type == "cpu" and not torch.equal(right, wrong)))
PY
