#!/usr/bin/env bash
# llama.cpp and transformers: temperature and top_p of a request are one distribution in neither. llama.cpp's server
# takes top_p (and min_p) of the model's probabilities, and applies the temperature to what is left; transformers and
# vLLM apply the temperature first. At temperature 3 and top_p 0.5 the first draws among three tokens, the others among
# eight. Settings from a model's card, tuned in one, are another amount of diversity in the other, in either direction:
# below 1 llama.cpp keeps more. "samplers" in the request sets the order.
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

def kept(temperature):
    """Letters within top_p of 0.5 after the temperature, as transformers counts them."""
    share = numpy.exp(-numpy.arange(26) / 4 / temperature)
    return int((numpy.cumsum(share / share.sum()) - share / share.sum() < 0.5).sum())


options = {"top_p": 0.5, "min_p": 0.0, "top_k": 0}
order = ["temperature", "top_p"]
print("guess: top_p of 0.5 keeps the letters of half the distribution that is drawn from")
found = []
for temperature in (0.25, 1.0, 3.0):
    seen = len(set(text("a", 150, temperature=temperature, **options)))
    other = len(set(text("a", 150, temperature=temperature, samplers=order, **options)))
    found.append((seen, other, kept(temperature)))
    print(f"seen: temperature {temperature}: {seen} letters, with it first {other}, by that rule {kept(temperature)}")
cold, _, warm = ((seen - rule, other - rule) for seen, other, rule in found)
sys.exit(not (cold[0] > 0 > warm[0] and cold[1] == warm[1] == 0))
PY
