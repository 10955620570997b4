#!/usr/bin/env bash
# llama.cpp: its server takes OpenAI's requests, where temperature 1 and top_p 1, which are also the defaults, mean the
# model's own distribution. The server then still leaves out each token below 5% of the most likely one (min_p) and all
# but 40 (top_k), fields that the API does not have and a client does not send. Samples are less diverse than those of
# another server with the same request, and an estimate made of them, pass@k or an expected reward, is one of another
# policy. "min_p": 0 and "top_k": 0 in the request turn both off; logprobs do not show them, since they are the
# model's.
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

options = {"temperature": 1.0, "top_p": 1.0}
seen = {
    name: sum(letter > "l" for letter in text("a", 400, **options, **more))
    for name, more in {"as OpenAI's": {}, "with min_p 0, top_k 0": {"min_p": 0.0, "top_k": 0}}.items()
}
share = numpy.exp(-numpy.arange(26) / 4)
print(f"guess: letters after l, {share[12:].sum() / share.sum():.1%} of the distribution, are about 20 of 400 draws")
print("seen:", seen)
sys.exit(not (seen["as OpenAI's"] == 0 and 8 < seen["with min_p 0, top_k 0"] < 40))
PY
