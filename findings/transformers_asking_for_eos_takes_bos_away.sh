#!/usr/bin/env bash
# transformers: add_eos_token=True asks for the end token after each text, as for training or for embeddings. With a
# tokenizer.json whose post-processor puts BOS before a text, as most have, it takes that BOS away: the post-processor
# is made anew, and add_bos_token counts as off unless it is given too. The model then reads texts that begin as none
# did in training, and a saved tokenizer keeps it. add_bos_token=False, asked for alone, does only what it says.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check transformers==5.23.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import logging
import sys

logging.disable()
import transformers  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: E402
from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402

words = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4}, "<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(sys.argv[1])


def tokens(**more):
    return AutoTokenizer.from_pretrained(sys.argv[1], **more)("a b").tokens()


seen = {
    "as it is": tokens(),
    "add_eos_token=True": tokens(add_eos_token=True),
    "add_bos_token=True, add_eos_token=True": tokens(add_bos_token=True, add_eos_token=True),
    "add_bos_token=False": tokens(add_bos_token=False),
}
AutoTokenizer.from_pretrained(sys.argv[1], add_eos_token=True).save_pretrained(sys.argv[1])
seen["saved with add_eos_token=True"] = tokens()
print("transformers", transformers.__version__)
print("guess: add_eos_token=True adds the end token to <s> a b")
for name, text in seen.items():
    print(f"seen, {name}: {' '.join(text)}")
right = ["<s> a b", "a b </s>", "<s> a b </s>", "a b", "a b </s>"]
sys.exit([" ".join(text) for text in seen.values()] != right)
PY
