#!/usr/bin/env bash
# transformers: special tokens of a GGUF file whose text has a character beyond the byte-level alphabet, such as DeepSeek's
# <|User|> with its full-width bars, are renamed while the file is read. Those that the file names as BOS or EOS are
# then added a second time, at ids past the end of the model's embedding; the others are cut into bytes, so that a chat
# prompt has none of the tokens that the model was trained on. Nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 gguf==0.19.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
from pathlib import Path

import gguf
import numpy as np
import transformers
from tokenizers import pre_tokenizers

folder = Path(sys.argv[1])
letters = sorted(pre_tokenizers.ByteLevel.alphabet())


def read(bar):
    """The tokenizer of a file whose special tokens are written with `bar`, and the ids of these in the file."""
    special = [f"<{bar}begin{bar}>", f"<{bar}end{bar}>", f"<{bar}User{bar}>"]
    writer = gguf.GGUFWriter(folder / "tokenizer.gguf", "qwen2")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("deepseek-r1-qwen")
    writer.add_token_list([*letters, "ab", *special])
    writer.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL] * 3)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_tensor("token_embd.weight", np.zeros((260, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file="tokenizer.gguf")
    return tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.encode(special[2], add_special_tokens=False)


plain, wide = read("|"), read("\uff5c")
print("transformers", transformers.__version__, "gguf 0.19.0")
print("guess: the 260 tokens of the file keep their ids: BOS 257, EOS 258, <|User|> [259]")
print("bars of ASCII: BOS", plain[0], "EOS", plain[1], "<|User|>", plain[2])
print("full-width bars: BOS", wide[0], "EOS", wide[1], "<\uff5cUser\uff5c>", wide[2])
sys.exit(not (plain == (257, 258, [259]) and wide[0] >= 260 and wide[1] >= 260 and len(wide[2]) > 1))
PY
