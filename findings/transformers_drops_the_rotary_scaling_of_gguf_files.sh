#!/usr/bin/env bash
# transformers: a GGUF file's rotary scaling is dropped. Linear and YaRN scaling, which llama.cpp reads from
# ARCH.rope.scaling.*, and the divisors of Llama 3.1 and later, a tensor rope_freqs.weight, all load as unscaled
# frequencies without an error or a warning: the model is right on the first words and wrong on long texts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 gguf==0.19.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
import warnings
from pathlib import Path

import gguf
import numpy as np
import transformers

folder = Path(sys.argv[1])
warnings.simplefilter("error")


def rope(name, kind=None, divisors=None):
    writer = gguf.GGUFWriter(folder / name, "llama")
    writer.add_block_count(1)
    writer.add_context_length(131072)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(500000.0)
    writer.add_vocab_size(64)
    if kind:
        writer.add_rope_scaling_type(kind)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(32768)
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    writer.add_tensor("token_embd.weight", np.zeros((64, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return transformers.AutoConfig.from_pretrained(folder, gguf_file=name).rope_parameters


llama3 = np.array([1, 1, 1, 1, 2, 8, 8, 8], np.float32)
seen = {
    "linear, factor 4": rope("linear.gguf", gguf.RopeScalingType.LINEAR),
    "yarn, factor 4": rope("yarn.gguf", gguf.RopeScalingType.YARN),
    "divisors of Llama 3": rope("llama3.gguf", divisors=llama3),
}
print("transformers", transformers.__version__, "gguf", "0.19.0")
print("guess: the config has the file's scaling, or the file is refused")
for name, parameters in seen.items():
    print(f"seen: {name}: {parameters}")
sys.exit(not all(parameters["rope_type"] == "default" for parameters in seen.values()))
PY
