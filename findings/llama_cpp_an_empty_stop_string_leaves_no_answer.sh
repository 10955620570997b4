#!/usr/bin/env bash
# llama.cpp: an empty string among the stop strings, as an empty field of a form or a setting that is split at commas
# gives, could be an error, or be passed over as one that ends nothing. The server takes it as found at the first place
# of each answer: the text is empty, finish_reason is "stop", usage counts one token, and the model seems to have
# nothing to say. It is so for other stop strings beside it, for streams, and in chats. A limit of no tokens (max_tokens
# 0), which one may set to read a prompt into the cache, is not followed: one token is made and returned.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import os
import sys
import urllib.request
from pathlib import Path

import gguf
import numpy
import xllamacpp

template = (
    "{% for m in messages %}<|im_start|>{{ m.role }}{{ '\\n' }}{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.arguments | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}"
)

# A model whose logits are the same at each place, with a token per letter and per byte; "a" is the best.
file, letters = str(Path(sys.argv[1]) / "letters.gguf"), [chr(ord("a") + index) for index in range(26)]
tokens = ["<unk>", "<s>", "</s>", *letters, "\u2581", *(f"<0x{byte:02X}>" for byte in range(256))]
writer = gguf.GGUFWriter(file, "llama")
for key, value in {
    "context_length": 2048, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32, "head_count": 2,
    "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "vocab_size": len(tokens), "rope_dimension_count": 16,
}.items():
    getattr(writer, f"add_{key}")(value)
writer.add_tokenizer_model("llama")
writer.add_token_list(tokens)
writer.add_token_scores([0.0] * len(tokens))
writer.add_token_types([2, 3, 3, *[1] * 27, *[6] * 256])
writer.add_chat_template(template)
logits = numpy.full(len(tokens), -20, numpy.float32)
logits[3:29] = -numpy.arange(26) / 4
writer.add_tensor("token_embd.weight", numpy.ones((len(tokens), 32), numpy.float32))
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
params.cpuparams.n_threads, params.verbosity, params.use_jinja = 1, -1, True
server = xllamacpp.Server(params)


def post(path, **body):
    """The server's answer to a request, as text."""
    data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(server.listening_address + path, data, kind)) as answer:
        return answer.read().decode()


def answer(**options):
    whole = json.loads(post("/v1/completions", prompt="hi", temperature=0, **{"max_tokens": 4, **options}))
    return whole["choices"][0]["text"], whole["choices"][0]["finish_reason"], whole["usage"]["completion_tokens"]


print("xllamacpp 2026.10.11549")
print("guess: an empty stop string is refused or stops nothing; a limit of 0 gives no token or is refused")
cases = {"no stop": {}, "z": {"stop": ["z"]}, "z and empty": {"stop": ["z", ""]}, "empty": {"stop": ""}}
seen = {name: answer(**options) for name, options in cases.items()}
seen["max_tokens 0"] = answer(max_tokens=0)
for name, values in seen.items():
    print("seen:", name, *values)
empty = [seen[name][:2] == ("", "stop") for name in ("z and empty", "empty")]
sys.stdout.flush()
os._exit(
    [seen[name][0] for name in ("no stop", "z", "max_tokens 0")] != ["aaaa", "aaaa", "a"] or empty != [True, True]
)
PY
