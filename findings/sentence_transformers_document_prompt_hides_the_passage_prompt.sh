#!/usr/bin/env bash
# sentence-transformers: encode_document looks for a prompt named document, then passage, then corpus, since models name
# it differently. The lookup takes the first that there is, and a model always has a document prompt: one that it was
# not given is added, empty. A model with prompts for query and passage, as those of the E5 family are described, thus
# encodes documents without any prompt, as does the example of prompts in the library's own documentation, while
# encode_query and prompt_name="passage" follow theirs. Nothing is said, vectors look right, and retrieval is worse than
# the model's.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q --disable-pip-version-check sentence-transformers==6.2.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import logging
import sys
from pathlib import Path

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
model = SentenceTransformer(modules=[Transformer(folder), Pooling(16)], prompts={"query": "w5 ", "passage": "w7 "})
model.save_pretrained(f"{folder}/saved")
file = Path(folder, "saved", "config_sentence_transformers.json")
config = json.loads(file.read_text())
file.write_text(json.dumps({**config, "prompts": {"query": "w5 ", "passage": "w7 "}}))
print("sentence-transformers", sentence_transformers.__version__)
print("guess: encode_document uses the prompt named passage, if there is none named document")
same = {}
for name, one in {"made": model, "of a file": SentenceTransformer(f"{folder}/saved")}.items():
    plain, passage = one.encode("w1"), one.encode("w1", prompt_name="passage")
    document, query = one.encode_document("w1"), one.encode_query("w1")
    same[name] = {
        "query as its prompt": np.allclose(query, one.encode("w1", prompt_name="query")),
        "document as passage": np.allclose(document, passage),
        "document as without a prompt": np.allclose(document, plain),
    }
    print(f"seen: {name}: {same[name]}, prompts {one.prompts}")
corpus = SentenceTransformer(modules=[Transformer(folder), Pooling(16)], prompts={"document": "w7 "})
followed = np.allclose(corpus.encode_document("w1"), corpus.encode("w1", prompt="w7 "))
print("a prompt named document is followed:", followed)
sys.exit(any(list(case.values()) != [True, False, True] for case in same.values()) or not followed)
PY
