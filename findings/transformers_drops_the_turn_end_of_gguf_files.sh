#!/usr/bin/env bash
# transformers: a GGUF file names the token that ends a text (eos) and the one that ends a turn of a chat (eot), and
# llama.cpp stops at both. transformers reads the first alone into its configs: generate goes on past the end of the
# turn, and writes the next question itself, where a model's turns end with the other token.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 gguf==0.19.0 accelerate==1.15.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

folder = Path(sys.argv[1])
size, width, eos, eot = 16, 32, 1, 5
writer = gguf.GGUFWriter(folder / "chat.gguf", "llama")
writer.add_block_count(1)
writer.add_context_length(64)
writer.add_embedding_length(width)
writer.add_feed_forward_length(width)
writer.add_head_count(2)
writer.add_head_count_kv(2)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_rope_dimension_count(16)
writer.add_vocab_size(size)
writer.add_eos_token_id(eos)
writer.add_eot_token_id(eot)
following = np.eye(size, width, dtype=np.float32)  # each token is followed by the next one
tensors = {"token_embd": following, "output": np.roll(following, 1, axis=0)}
tensors |= dict.fromkeys(("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"), np.ones(width, np.float32))
names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
tensors |= {f"blk.0.{name}": np.zeros((width, width), np.float32) for name in names}
for name, values in tensors.items():
    writer.add_tensor(f"{name}.weight", values)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file="chat.gguf", dtype=torch.float32)
written = model.generate(torch.tensor([[2]]), do_sample=False, max_new_tokens=8, pad_token_id=0)[0, 1:].tolist()
print("transformers", transformers.__version__, "gguf 0.19.0")
print(f"guess: generation ends at the file's eot, {eot}: it writes 3, 4, 5")
print("seen: eos_token_id", model.generation_config.eos_token_id, "and it writes", written)
sys.exit(not (model.generation_config.eos_token_id == eos and written == [3, 4, 5, 6, 7, 8, 9, 10]))
PY
