#!/usr/bin/env bash
# trl: SFTTrainer adds the end token to each example, so that a model learns to stop. With prompt and completion columns
# it is added to the completion, unless the rows have a column "text" too, as many data sets keep beside both, as source
# or as the joined form: then the text gets the end token, and the tokens are made of prompt and completion without it.
# A column that training does not use decides whether the model ever ends its answers; the loss looks as usual, and
# nothing is said. Chats, whose end is in the template, are not concerned.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 transformers==5.23.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check accelerate==1.15.0 datasets==5.2.0 trl==1.16.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys

import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = ["<pad>", "</s>", "<unk>", "what", "is", "one", "yes", "no"]
model = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
config = LlamaConfig(
    vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, pad_token_id=0
)


def tokens(**row):
    arguments = SFTConfig(output_dir=sys.argv[1], report_to="none", use_cpu=True, bf16=False)
    rows = Dataset.from_list([row])
    trainer = SFTTrainer(LlamaForCausalLM(config), arguments, train_dataset=rows, processing_class=tokenizer)
    return [words[number] for number in trainer.train_dataset[0]["input_ids"]]


print("trl", trl.__version__)
row = {"prompt": "what is one", "completion": " yes"}
seen = [tokens(**row), tokens(**row, source="no"), tokens(**row, text="no")]
for name, got in zip(("two columns", 'a column "source" beside them', 'a column "text" beside them'), seen):
    print(f"guess, {name}:", seen[0])
    print(f"seen, {name}:", got)
right = ["what", "is", "one", "yes", "</s>"]
sys.exit(seen != [right, right, right[:-1]])
PY
