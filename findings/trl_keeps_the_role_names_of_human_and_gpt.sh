#!/usr/bin/env bash
# trl: chats in ShareGPT's form have "conversations" of "from" and "value", and SFTTrainer converts them to "messages"
# of "role" and "content" by itself. It renames the keys and not the roles, which are "human" and "gpt" there: a
# template that writes the role, as ChatML does, trains the model on headers that no chat ever has, and one that asks
# whether a role is "user" or "assistant" leaves the turns out, and with them the whole example. The loss falls, and the
# model answers as before to the roles that it is used with. Nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 transformers==5.23.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check accelerate==1.15.0 datasets==5.2.0 trl==1.16.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check jinja2==3.1.6
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys

import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = ["<pad>", "<end>", "<unk>", "<start>", "user", "assistant", "human", "gpt", "what", "yes"]
model = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, pad_token="<pad>", eos_token="<end>", unk_token="<unk>")
config = LlamaConfig(
    vocab_size=10, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, pad_token_id=0
)
templates = {
    "writes the role": "{{ '<start> ' + m.role + ' ' + m.content + ' <end> ' }}",
    "asks for the role": "{% if m.role == 'user' %}{{ '<start> ' + m.content + ' ' }}"
    "{% elif m.role == 'assistant' %}{{ m.content + ' <end> ' }}{% endif %}",
}
chats = {
    "user, assistant": {"messages": [{"role": "user", "content": "what"}, {"role": "assistant", "content": "yes"}]},
    "human, gpt": {"conversations": [{"from": "human", "value": "what"}, {"from": "gpt", "value": "yes"}]},
}


def tokens(row):
    arguments = SFTConfig(output_dir=sys.argv[1], report_to="none", use_cpu=True, bf16=False)
    rows = Dataset.from_list([row])
    trainer = SFTTrainer(LlamaForCausalLM(config), arguments, train_dataset=rows, processing_class=tokenizer)
    return [" ".join(words[number] for number in row["input_ids"]) for row in trainer.train_dataset]


print("trl", trl.__version__)
seen = {}
for name, template in templates.items():
    tokenizer.chat_template = "{% for m in messages %}" + template + "{% endfor %}"
    right, seen[name] = (tokens(chat) for chat in chats.values())
    print(f"guess, a template that {name}:", right)
    print(f"seen, a template that {name}:", seen[name])
sys.exit(seen != {"writes the role": ["<start> human what <end> <start> gpt yes <end>"], "asks for the role": []})
PY
