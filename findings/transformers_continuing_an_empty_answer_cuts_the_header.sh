#!/usr/bin/env bash
# transformers: continue_final_message=True leaves the last message of a chat open, so that a model goes on with it. With
# an empty one, as of an editor or a loop that has not begun yet, one expects the prompt that add_generation_prompt
# gives: header and line break, and then the answer. Where a template has the filter trim, as those of Llama 3 and many
# others, the line break is cut off: the prompt ends in "assistant", and the model has to write the line break first,
# which training never asked of it. The same holds for a message of blanks, and an indent at the end of an open message
# is lost with them. Nothing is said. A template without the filter keeps all of it, and so does a text that ends in a
# letter, which is what one tries.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 numpy==2.4.6
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
tokenizer.add_special_tokens(["</s>", "<|im_start|>", "<|im_end|>"])
tokens = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>")
FORMAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content FILTER }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def prompt(template, begun):
    """What stands after the question, if the answer begins with `begun`; the generation prompt for None."""
    tokens.chat_template = template
    chat = [{"role": "user", "content": "Write f."}]
    options = {"add_generation_prompt": True}
    if begun is not None:
        chat, options = [*chat, {"role": "assistant", "content": begun}], {"continue_final_message": True}
    return tokens.apply_chat_template(chat, tokenize=False, **options).partition("<|im_end|>\n")[2]


header = "<|im_start|>assistant\n"
print("transformers", transformers.__version__)
print(f"guess: each prompt ends in {header!r} and what the answer begins with")
seen = {}
for name, template in (("plain", FORMAT.replace("FILTER", "")), ("trim", FORMAT.replace("FILTER", "| trim"))):
    seen[name] = [prompt(template, begun).removeprefix("<|im_start|>") for begun in (None, "So", "", " ", "f():\n    ")]
    print(f"{name}: {seen[name]}")
starts = ["assistant\n", "assistant\nSo"]
plain = [*starts, "assistant\n", "assistant\n ", "assistant\nf():\n    "]
sys.exit([*seen.values()] != [plain, [*starts, "assistant", "assistant", "assistant\nf():"]])
PY
