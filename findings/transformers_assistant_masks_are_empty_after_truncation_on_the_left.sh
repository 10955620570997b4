#!/usr/bin/env bash
# transformers: apply_chat_template(return_assistant_tokens_mask=True) marks the tokens of the answers, on which alone a
# model is trained. A long chat is truncated, and on the left, so that its last and most important answer stays. As soon
# as the beginning of the first answer is cut off, the mask is empty: no answer is marked, those that are there in
# full neither. Such a chat trains nothing, its loss is a mean over no tokens, and nothing is said. The longer the chats,
# the more of them are lost. Truncation on the right, and one that leaves the first answer whole, mark what is left.
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
tokens.chat_template = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
)
turns = [("one?", "yes"), ("two?", "no"), ("3?", "so")]
chat = [
    {"role": role, "content": text} for turn in turns for role, text in zip(("user", "assistant"), turn, strict=True)
]


def trained(side, length):
    """The text that is kept, and the part of it that the mask marks."""
    tokens.truncation_side = side
    row = tokens.apply_chat_template(
        chat, return_assistant_tokens_mask=True, return_dict=True, truncation=True, max_length=length
    )
    marked = [token for token, on in zip(row["input_ids"], row["assistant_masks"], strict=True) if on]
    return tokens.decode(row["input_ids"]), tokens.decode(marked)


cases = [("right", 60), ("left", 60), ("left", 58), ("left", 40), ("left", 20)]
print("transformers", transformers.__version__)
print("guess: the answers that a truncated chat still has are marked")
seen = []
for side, length in cases:
    kept, marked = trained(side, length)
    seen.append((sum(f"\n{answer}<|im_end|>" in kept for _, answer in turns), marked))
    print(f"{side}, {length} tokens: keeps {seen[-1][0]} whole answers, marks {marked!r}")
right, left = "yes<|im_end|>no<|im_end|>", "yes<|im_end|>no<|im_end|>so<|im_end|>"
sys.exit(seen != [(2, right), (3, left), (3, left), (2, ""), (1, "")])
PY
