#!/usr/bin/env bash
# open_clip: the tokenizer takes additional_special_tokens, as one adds them for a new concept or a style, and the model
# is given rows for their ids. A caption is embedded by what its last token has seen, and which one that is, the model
# finds as the largest id of the row: the end token has the largest of CLIP's vocabulary. An added token has a larger
# one. The caption then ends there for the model: what comes after "<red>" has no effect at all, so that "a <red> cat"
# and "a <red> car" are equal, and training moves the new token for any caption. Nothing is said, and token ids look
# right. With "pool_type": "eos" and the id of the end token in the model's config the whole caption is read.
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
text = {"context_length": 77, "vocab_size": 49410, "width": 64, "heads": 2, "layers": 2}
tokenizer = open_clip.SimpleTokenizer(additional_special_tokens=["<red>", "<blue>"])
for name, extra in (("argmax", {}), ("eos", {"pool_type": "eos", "eos_id": tokenizer.eot_token_id})):
    with open(f"{folder}/{name}.json", "w") as file:
        json.dump({"embed_dim": 32, "vision_cfg": vision, "text_cfg": {**text, **extra}}, file)
    open_clip.add_model_config(f"{folder}/{name}.json")


@torch.inference_mode()
def cosine(name, one, other):
    torch.manual_seed(0)
    model = open_clip.create_model(name, load_weights=False).eval()
    first, second = model.encode_text(tokenizer([one, other]), normalize=True)
    return float(first @ second)


print("open_clip_torch", metadata.version("open_clip_torch"), "torch", torch.__version__)
print("guess: two captions with other words after an added token have other embeddings")
print("ids:", tokenizer(["a <red> cat"])[0, :6].tolist(), "end token", tokenizer.eot_token_id)
pairs = {
    "no added token": ("a cat on a mat", "a horse under a tree"),
    "<red>": ("a <red> cat on a mat", "a <red> horse under a tree"),
    "<red> and <blue>": ("a <red> cat and a <blue> mat", "a <red> cat and a <blue> car"),
}
found = {name: [cosine("argmax", *pair), cosine("eos", *pair)] for name, pair in pairs.items()}
for name, (default, eos) in found.items():
    print(f"{name}: cosine {default:.6f}, with pool_type eos {eos:.6f}")
equal = [found["<red>"][0], found["<red> and <blue>"][0]]
others = [value for pair in found.values() for value in pair if value not in equal]
sys.exit(not (min(equal) > 0.999999 and len(others) == 4 and max(others) < 0.999))
PY
