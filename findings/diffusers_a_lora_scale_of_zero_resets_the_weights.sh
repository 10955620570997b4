#!/usr/bin/env bash
# diffusers: set_adapters gives each adapter a weight, and a scale of the call ({"scale": 0.5}) multiplies it for one
# picture; afterwards the weights are what they were. After a call with a scale of 0, the way to compare a picture with
# the one without adapters, they are 1: every later picture has the adapter at twice the strength that was set, or ten
# times, or two adapters that were mixed 0.7 to 0.3 in equal parts, and nothing is said. With a scale of 0.5 or 2 they
# come back, and a weight of 1, as most tests have, does not show it. disable_lora keeps the weights.
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
def picture(**options):
    return model(sample, 10, prompt, cross_attention_kwargs=options or None).sample


base = picture()
model.add_adapter(LoraConfig(r=4, target_modules=["to_q", "to_v"], init_lora_weights=False), "style")
model.set_adapters("style", 1.0)
whole = picture()
model.set_adapters("style", 0.1)
tenth = picture()
picture(scale=0.5)
after_half = picture()
zero = picture(scale=0.0)
after_zero = picture()
model.set_adapters("style", 0.1)
model.disable_lora()
model.enable_lora()
after_disabling = picture()


def moved(one, other):
    return float((one - other).abs().max())


print("diffusers", metadata.version("diffusers"), "peft", metadata.version("peft"), "torch", torch.__version__)
print("guess: after a call with another scale an adapter has the weight of 0.1 that was set")
print(f"a call with scale 0: differs from the model without an adapter by {moved(zero, base):.4f}")
print(f"after scale 0.5: differs from weight 0.1 by {moved(after_half, tenth):.4f}")
print(f"after scale 0: differs from weight 0.1 by {moved(after_zero, tenth):.4f}, from 1 by", moved(after_zero, whole))
print(f"after disable_lora and enable_lora: differs from weight 0.1 by {moved(after_disabling, tenth):.4f}")
right = max(moved(zero, base), moved(after_half, tenth), moved(after_disabling, tenth)) < 1e-4
sys.exit(not (right and moved(after_zero, whole) < 1e-4 and moved(after_zero, tenth) > 0.05))
PY
