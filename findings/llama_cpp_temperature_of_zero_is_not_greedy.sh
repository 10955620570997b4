#!/usr/bin/env bash
# llama.cpp: temperature 0 means the best token in every API. In llama.cpp's server it means the best of what the filters
# before it have left, and two of them take the best token out: typical_p drops tokens that are likelier than typical,
# and XTC, made to drop the top choices. With dynatemp_range the temperature is the middle of a range, and 0 is drawn
# from at up to that range. Defaults of a server or a preset that has one of these stay in use when a client sends
# temperature 0 for a repeatable answer: the text is another one than greedy, or another one for each seed.
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

plain = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
cases = {
    "top_k 5, top_p 0.9, min_p 0.1": {"top_k": 5, "top_p": 0.9, "min_p": 0.1},
    "typical_p 0.3": {"typical_p": 0.3},
    "XTC": {"xtc_probability": 1.0, "xtc_threshold": 0.05},
    "dynatemp_range 1": {"dynatemp_range": 1.0},
}
print("guess: at temperature 0 the text is a repeated, the likeliest letter, whatever filters there are")
seen = {}
for name, options in cases.items():
    texts = [text("a", 24, **{**plain, **options, "seed": seed}) for seed in (1, 2)]
    seen[name] = ["".join(sorted(set(letters))) for letters in texts], texts[0] == texts[1]
    print(f"seen: {name}: {texts[0]}, the same for another seed: {seen[name][1]}")
greedy, typical, xtc, dynamic = seen.values()
print("no letter but the likeliest without these:", greedy[0][0] == "a")
sys.exit(greedy != (["a", "a"], True) or "a" in typical[0][0] or "a" in xtc[0][0] or dynamic[1])
PY
