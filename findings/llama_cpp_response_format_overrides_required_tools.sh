#!/usr/bin/env bash
# llama.cpp: tool_choice="required" makes a model call one of the tools, and response_format gives an answer a form.
# Together, as in a client that always asks for JSON, they could mean that a call comes first, or be refused, as a
# grammar beside tools is. The server drops the requirement: the answer is JSON by the format, no tool is called,
# tool_calls is absent, and finish_reason is "stop". An agent that relies on a call takes the text for a final answer.
# With response_format of type "text" the call is made.
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


schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
tool = {"type": "function", "function": {"name": "f", "description": "finds", "parameters": schema}}
formats = {
    "none": None,
    "text": {"type": "text"},
    "json_object": {"type": "json_object"},
    "json_schema": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer", "maximum": 9}}},
}
print("xllamacpp 2026.10.11549")
print("guess: a tool is called, or the request is refused")
called = {}
for name, kind in formats.items():
    options = {"response_format": kind} if kind else {}
    messages = [{"role": "user", "content": "hi"}]
    options |= {"messages": messages, "tools": [tool], "tool_choice": "required", "max_tokens": 64, "temperature": 0}
    choice = json.loads(post("/v1/chat/completions", **options))["choices"][0]
    called[name] = bool(choice["message"].get("tool_calls"))
    content, reason = choice["message"].get("content"), choice["finish_reason"]
    print(f"seen: response_format {name}: a call {called[name]}, content {content!r}, finish_reason {reason}")
sys.stdout.flush()
os._exit(called != {"none": True, "text": True, "json_object": False, "json_schema": False})
PY
