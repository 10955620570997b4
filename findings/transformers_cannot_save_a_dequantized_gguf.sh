#!/usr/bin/env bash
# transformers: a model read from a GGUF file is dequantized to plain floating-point weights, and still cannot be saved.
# save_pretrained says that it "is quantized with gguf", so that the obvious way to convert a GGUF file to safetensors
# fails; a state dict written by safetensors works. A file whose tensors are all float32 is refused in the same way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 gguf==0.19.0 accelerate==1.12.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

folder = Path(sys.argv[1])
shapes = {"token_embd": (64, 32), "output_norm": (32,), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}
shapes |= {"blk.0.attn_q": (32, 32), "blk.0.attn_k": (32, 32), "blk.0.attn_v": (32, 32), "blk.0.attn_output": (32, 32)}
shapes |= {"blk.0.ffn_gate": (64, 32), "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64)}


def saved(name, kind):
    writer = gguf.GGUFWriter(folder / name, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(64)
    for tensor, shape in shapes.items():
        values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        if len(shape) == 1 or kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(f"{tensor}.weight", values)
        else:
            writer.add_tensor(f"{tensor}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    types = {parameter.dtype for parameter in model.parameters()}
    try:
        model.save_pretrained(folder / name.removesuffix(".gguf"))
    except ValueError as error:
        return types, str(error).splitlines()[0]
    return types, "saved"


seen = {kind: saved(f"{kind}.gguf", getattr(gguf.GGMLQuantizationType, kind)) for kind in ("Q8_0", "F32")}
print("transformers", transformers.__version__, "gguf 0.19.0")
print("guess: the weights are plain float32 tensors, so that save_pretrained writes them")
for kind, (types, outcome) in seen.items():
    print(f"seen: a file of {kind}: parameters {types}, save_pretrained: {outcome}")
sys.exit(not all(types == {torch.float32} and "gguf" in outcome for types, outcome in seen.values()))
PY
