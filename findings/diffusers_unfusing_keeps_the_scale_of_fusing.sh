#!/usr/bin/env bash
# diffusers: fuse_lora(lora_scale=0.5) adds an adapter to the weights of a model at half its strength, and unfuse_lora
# takes it off again. The weights are then what they were, and the adapter is not: its scale stays at half, so that the
# next pictures have it at 0.5, and fusing once more with 0.5 gives 0.25. A loop over scales, fuse, draw, unfuse,
# compares other scales than it names, each the product of all before it, until no effect is left. No error or warning
# says so; with a scale of 1 all is as one thinks. set_adapters before each fuse_lora starts anew.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check diffusers==0.42.1 peft==0.21.2
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import torch
from diffusers import UNet2DConditionModel
from peft import LoraConfig

torch.manual_seed(0)
model = UNet2DConditionModel(
    sample_size=8, layers_per_block=1, block_out_channels=(32, 32), cross_attention_dim=16, attention_head_dim=4,
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    norm_num_groups=8,
).eval()  # fmt: skip
sample, prompt = torch.randn(1, 4, 8, 8), torch.randn(1, 5, 16)


@torch.inference_mode()
def picture():
    return model(sample, 10, prompt).sample


def of_weight(weight):
    model.set_adapters("style", weight)
    return picture()


def fused(scale):
    model.fuse_lora(lora_scale=scale)
    drawn = picture()
    model.unfuse_lora()
    return drawn


model.add_adapter(LoraConfig(r=4, target_modules=["to_q", "to_v"], init_lora_weights=False), "style")
weights = {weight: of_weight(weight) for weight in (0.0, 0.25, 0.5, 0.75, 1.0)}


def nearest(drawn):
    """The weight whose picture this is."""
    return min(weights, key=lambda weight: float((weights[weight] - drawn).abs().max()))


model.set_adapters("style", 1.0)
whole, after_one = nearest(fused(1.0)), nearest(picture())
first, after, second = nearest(fused(0.5)), nearest(picture()), nearest(fused(0.5))
model.set_adapters("style", 1.0)
anew = nearest(fused(0.5))
print("diffusers", metadata.version("diffusers"), "peft", metadata.version("peft"), "torch", torch.__version__)
print("guess: an adapter fused at 0.5 has the strength 0.5 each time, and 1 when it is unfused")
print(f"fused at 1: strength {whole}, unfused {after_one}")
print(f"fused at 0.5: strength {first}, unfused {after}, fused at 0.5 again {second}, after set_adapters {anew}")
sys.exit((whole, after_one, first, after, second, anew) != (1.0, 1.0, 0.5, 0.5, 0.25, 0.5))
PY
