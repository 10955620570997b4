#!/usr/bin/env bash
# llama.cpp: mirostat chooses how many tokens to draw from, and its help says that top-k, nucleus and typical are ignored
# with it. Penalties are of another kind, they change logits, as logit_bias does, which is followed. They are dropped
# as well: repeat_penalty, presence and frequency penalties, and DRY change no token, and no error or log says so. A
# setting that was found to stop a model from repeating itself stops to work when mirostat is turned on beside it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
from pathlib import Path

import gguf
import numpy
import xllamacpp

# A model whose logits are the same at each place: 0 for "a", -1/4 for "b", and so on to "z".
file, letters = str(Path(sys.argv[1]) / "letters.gguf"), [chr(ord("a") + index) for index in range(26)]
writer = gguf.GGUFWriter(file, "llama")
for key, value in {
    "context_length": 2048, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32, "head_count": 2,
    "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "vocab_size": 32, "rope_dimension_count": 16,
}.items():
    getattr(writer, f"add_{key}")(value)
writer.add_tokenizer_model("llama")
writer.add_token_list(["<unk>", "<s>", "</s>", *letters, "\u2581", "<0x0A>", "Z"])
writer.add_token_scores([0.0] * 32)
writer.add_token_types([2, 3, 3, *[1] * 27, 6, 1])
logits = numpy.full(32, -20, numpy.float32)
logits[3:29] = -numpy.arange(26) / 4
writer.add_tensor("token_embd.weight", numpy.ones((32, 32), numpy.float32))
writer.add_tensor("output.weight", numpy.repeat(logits[:, None] / 32, 32, 1))
for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
    writer.add_tensor(f"blk.0.{name}.weight", numpy.zeros((32, 32), numpy.float32))
for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
    writer.add_tensor(f"{name}.weight", numpy.ones(32, numpy.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup = file, 2048, 1, False
params.cpuparams.n_threads, params.verbosity = 1, -1
server = xllamacpp.Server(params)


def text(prompt, tokens, **options):
    answer = server.handle_completions({"prompt": prompt, "max_tokens": tokens, "seed": 1, **options})
    return answer["choices"][0]["text"]


print("xllamacpp 2026.10.11549")

plain = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
penalties = {
    "repeat_penalty": {"repeat_penalty": 1e6, "repeat_last_n": 500},
    "frequency_penalty": {"frequency_penalty": 100.0, "repeat_last_n": 500},
    "presence_penalty": {"presence_penalty": 100.0, "repeat_last_n": 500},
    "DRY": {"dry_multiplier": 100.0, "dry_allowed_length": 1, "dry_penalty_last_n": 500},
    "logit_bias": {"logit_bias": [[3, -100.0]]},
}
print("guess: each of these settings changes the text, with mirostat too")
seen = {}
for name, options in penalties.items():
    texts = [[text("a", 24, mirostat=kind, **plain, **more) for more in ({}, options)] for kind in (0, 1, 2)]
    seen[name] = [one != other for one, other in texts]
    print(f"seen: {name} changes the text without mirostat: {seen[name][0]}, with 1: {seen[name][1]}, 2: {seen[name][2]}")
expected = {name: [True, False, False] for name in penalties} | {"logit_bias": [True, True, True]}
sys.exit(seen != expected)
PY
