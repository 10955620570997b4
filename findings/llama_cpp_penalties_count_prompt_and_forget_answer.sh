#!/usr/bin/env bash
# llama.cpp: presence and frequency penalties are OpenAI's fields, and make a token less likely that the answer has
# already. In llama.cpp they count the last 64 tokens, whatever these are: at first the prompt's end, so that a
# question about a word keeps the answer from using it, and later no more than the last 64 of the answer. A frequency
# penalty that should grow until a loop ends stops growing, and a word comes back as soon as it is 65 tokens away. vLLM
# counts the answer alone and all of it. A large repeat_last_n counts all, with the prompt.
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

first = {prompt: text(prompt, 1, temperature=0, presence_penalty=1.0) for prompt in ("z", "aaa", "a" + "z" * 80)}
used = {
    last: "".join(sorted(set(text("z", 300, temperature=0, frequency_penalty=0.05, repeat_last_n=last))))
    for last in (64, 1024)
}
default = "".join(sorted(set(text("z", 300, temperature=0, frequency_penalty=0.05))))
print("guess: the first token of an answer has no penalty: a after each prompt; and 300 tokens with a penalty for each")
print("repetition use many letters")
print("seen: first token", {prompt[:3]: token for prompt, token in first.items()}, "letters", default, used)
sys.exit(not (list(first.values()) == ["a", "b", "a"] and default == used[64] and len(default) < len(used[1024])))
PY
