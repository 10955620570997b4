#!/usr/bin/env bash
# sentence-transformers: include_prompt=False of Pooling leaves the tokens of an instruction out of a text's vector,
# though the text's tokens have seen it. The tokens before the prompt are left out with it: [CLS] and BOS are counted as
# its part. With pooling_mode="cls" the vector is then not that of [CLS], on which such a model was trained: it is the
# vector of the text's first word. Without a prompt the same model takes [CLS], so that queries with an instruction and
# documents without one are vectors of different kinds, and nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q --disable-pip-version-check sentence-transformers==6.2.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import logging
import sys

import numpy as np
import sentence_transformers
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

logging.disable(logging.CRITICAL)
folder = sys.argv[1]
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(40))]
tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
)
torch.manual_seed(0)
size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
BertModel(BertConfig(vocab_size=44, max_position_embeddings=64, initializer_range=0.3, **size)).save_pretrained(folder)
special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **special).save_pretrained(folder)
prompts = {"query": "w5 w6 "}
found = {}
for inside in (True, False):
    pooling = Pooling(16, pooling_mode="cls", include_prompt=inside)
    model = SentenceTransformer(modules=[Transformer(folder), pooling], prompts=prompts)
    for name in ("query", None):
        options = {"prompt_name": name} if name else {}
        # Five tokens with the prompt and two words: [CLS] w5 w6 w1 w2 [SEP]
        tokens = model.encode("w1 w2", output_value="token_embeddings", **options)
        vector = torch.as_tensor(model.encode("w1 w2", **options))
        where = [place for place, token in enumerate(tokens) if torch.allclose(token, vector, atol=1e-5)]
        text = (["[CLS]", "w5", "w6"] if name else ["[CLS]"]) + ["w1", "w2", "[SEP]"]
        found[inside, name] = [text[place] for place in where]
print("sentence-transformers", sentence_transformers.__version__)
print("guess: pooling by cls takes the vector of [CLS], with a prompt and without one")
for (inside, name), tokens in found.items():
    print(f"seen: include_prompt={inside}, prompt {name}: the vector of {tokens}")
sys.exit(list(found.values()) != [["[CLS]"], ["[CLS]"], ["w1"], ["[CLS]"]])
PY
