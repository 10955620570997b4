#!/usr/bin/env bash
# open_clip: force_context_length=32 makes a CLIP model of 77 tokens one of 32, to save time where captions are short.
# One expects it to drop the positions that are no longer used. It stretches or shrinks them all, as those of a picture
# are for another resolution: token 10 gets what token 24 was trained with. Every caption has another embedding, those
# that fit into 32 tokens too, and a longer context moves the short ones as well. A line of the log at level INFO, which
# is not shown by default, is all that is said. Cutting positional_embedding by hand keeps the embeddings.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchvision==0.28.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check open_clip_torch==3.3.0 timm==1.0.31 numpy==2.4.6
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import sys
from importlib import metadata

import torch

try:
    import torchvision
except (
    RuntimeError
):  # built for a GPU, beside a PyTorch that is not: its own operators are missing, and not needed here
    library = torch.library.Library("torchvision", "DEF")
    for name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.define(f"_{name}_backward(Tensor x) -> Tensor")
    library.define("nms(Tensor x) -> Tensor")
    library.define("qnms(Tensor x) -> Tensor")
    import torchvision
import open_clip

folder = sys.argv[1]
vision = {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16}
text = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2}
with open(f"{folder}/tiny.json", "w") as file:
    json.dump({"embed_dim": 32, "vision_cfg": vision, "text_cfg": text}, file)
open_clip.add_model_config(f"{folder}/tiny.json")
torch.manual_seed(0)
captions = ["a cat", "a dog", "a red car", "two horses on a beach"]


@torch.inference_mode()
def embedded(model, length):
    return model.eval().encode_text(open_clip.get_tokenizer("tiny", context_length=length)(captions), normalize=True)


trained = open_clip.create_model("tiny", load_weights=False)
with torch.no_grad():
    trained.positional_embedding.normal_(std=0.1)
torch.save(trained.state_dict(), f"{folder}/model.pt")
whole = embedded(trained, 77)
print("open_clip_torch", metadata.version("open_clip_torch"), "torch", torch.__version__)
print("guess: captions of a few tokens have the same embeddings with a context of 77, 32 or 154 tokens")
likeness = {}
for length in (77, 32, 154):
    model = open_clip.create_model("tiny", pretrained=f"{folder}/model.pt", force_context_length=length)
    likeness[length] = float((embedded(model, length) * whole).sum(-1).min())
    print(f"a context of {length}: least cosine with the embeddings of before {likeness[length]:.4f}")
cut = open_clip.create_model("tiny", load_weights=False, force_context_length=32)
weights = trained.state_dict()
weights["positional_embedding"] = weights["positional_embedding"][:32]
cut.load_state_dict(weights)
likeness["cut"] = float((embedded(cut, 32) * whole).sum(-1).min())
print(f"the first 32 positions, cut by hand: {likeness['cut']:.4f}")
sys.exit(not (min(likeness[77], likeness["cut"]) > 0.9999 and max(likeness[32], likeness[154]) < 0.99))
PY
