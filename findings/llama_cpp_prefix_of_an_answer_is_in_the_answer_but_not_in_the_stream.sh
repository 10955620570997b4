#!/usr/bin/env bash
# llama.cpp: a chat whose last message is the assistant's is the beginning of an answer, which the model goes on with.
# The answer as a whole begins with that message, and the same answer as a stream does not: a client that puts both
# together has the beginning twice in one of the two. Log-probabilities and the count of tokens leave it out in both, so
# that they are no longer those of the text. A prefix that is empty, as of an interface that sends the answer to be
# filled in, takes the assistant's header away: the prompt ends after the question, and the model writes what follows a
# user's turn. In one of several parts they are joined by two line breaks, those of a question by one.
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


def asked(*content):
    """The messages of a question and the beginning of its answer."""
    return [{"role": role, "content": text} for role, text in zip(("user", "assistant"), content, strict=False)]


def prompt(*content):
    return json.loads(post("/apply-template", messages=asked(*content)))["prompt"]


options = {"messages": asked("hi", "zz"), "max_tokens": 4, "temperature": 0, "logprobs": True, "top_logprobs": 1}
whole = json.loads(post("/v1/chat/completions", **options))["choices"][0]
lines = post("/v1/chat/completions", stream=True, **options).splitlines()
events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
stream = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
scored = "".join(token["token"] for token in whole["logprobs"]["content"])
print("xllamacpp 2026.10.11549")
print("guess: whole or as a stream, the text of an answer is the same, and its tokens are those of the text")
print("seen: whole", whole["message"]["content"], "stream", stream, "tokens", scored)
print("guess: an empty prefix leaves the prompt as it is without one")
print("seen:", repr(prompt("hi", "")), "without one", repr(prompt("hi")))
parts = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
print("two parts of a question", repr(prompt(parts)))
print("two parts of a prefix", repr(prompt("hi", parts)))
text = whole["message"]["content"], stream, scored
header = prompt("hi", "").endswith("hi<|im_end|>\n") and prompt("hi").endswith("<|im_start|>assistant\n")
joined = "user\nx\ny<" in prompt(parts) and prompt("hi", parts).endswith("assistant\nx\n\ny")
sys.stdout.flush()
os._exit(text != ("zzaaaa", "aaaa", "aaaa") or not header or not joined)
PY
