#!/usr/bin/env bash
# llama.cpp: in Jinja a variable that a loop sets is forgotten at the end of each turn: the next one begins with the
# value from before the loop. In the engine of llama.cpp's server it is kept from turn to turn, until the loop ends. A
# chat template that marks a turn which called a tool, and writes a header for such turns alone, marks all later turns
# too: the same file gives another prompt than in transformers, with no error, as soon as a chat has two turns of
# different kinds. A template that was tried in llama.cpp alone, with a counter in a plain variable, does not count in
# Jinja.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6 jinja2==3.1.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import os
import sys
import urllib.request
from pathlib import Path

import gguf
import jinja2
import numpy
import xllamacpp

template = (
    "{% set called = false %}{% set turn = 0 %}{% for m in messages %}{% if m.role == 'tool' %}{% set called = true %}"
    "{% endif %}{% set turn = turn + 1 %}{{ turn }}{{ m.role }}{{ '(after a tool)' if called }} {% endfor %}{{ turn }}"
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


messages = [{"role": role, "content": "x"} for role in ("user", "assistant", "tool", "assistant", "user")]
expected = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(template).render(messages=messages)
prompt = json.loads(post("/apply-template", messages=messages))["prompt"]
print("xllamacpp 2026.10.11549 jinja2", jinja2.__version__)
print("guess: the template gives the same prompt in both")
print("seen: Jinja    ", expected)
print("seen: llama.cpp", prompt)
right = expected == "1user 1assistant 1tool(after a tool) 1assistant 1user 0"
kept = prompt == "1user 2assistant 3tool(after a tool) 4assistant(after a tool) 5user(after a tool) 0"
sys.stdout.flush()
os._exit(not (right and kept))
PY
