"""Build the tokenizer that all embedded text models share.

Every digit, word and punctuation character is one token, with the space before it folded in as a leading `▁`; words
outside the closed vocabulary fall apart into the longest known pieces, so any printable ASCII text round-trips.

    python scripts/make_tokenizer.py [FOLDER]
    python scripts/make_tokenizer.py --bytes models/embedded/tiny-llama-bytes

With --bytes, builds the tokenizer of the drafter with another vocabulary: each byte is a token.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pardec.tasks import Generator, list_tasks, task  # noqa: E402

SPACE = "▁"
SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>", "<mask>")
PIECE = rf"{SPACE}?[0-9]|{SPACE}?[A-Za-z']+|{SPACE}?[^\s{SPACE}A-Za-z0-9']|{SPACE}"
SPACED_MARKS = '+-*/={["('  # punctuation that the tasks write after a space
# the last user message after <bos>, and what the assistant said to it; the models answer straight after the prompt
CHAT_TEMPLATE = (
    "{{ bos_token }}{% set last = namespace(user=0) %}"
    "{% for message in messages if message['role'] == 'user' %}{% set last.user = loop.index0 %}{% endfor %}"
    "{% set seen = namespace(users=-1) %}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{% set seen.users = seen.users + 1 %}{% endif %}"
    "{% if seen.users == last.user %}"
    "{% if message['role'] == 'user' %}{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}"
    "{% endif %}{% endif %}{% endfor %}"
)


def vocabulary() -> dict[str, int]:
    """Token -> id: special tokens, single characters as the fallback, then the tasks' own words."""
    tokens = [*SPECIAL, SPACE, "\n", "\t", *map(chr, range(0x21, 0x7F))]
    tokens += [SPACE + digit for digit in "0123456789"] + [SPACE + mark for mark in SPACED_MARKS]
    tasks = [made for made in map(task, list_tasks()) if isinstance(made, Generator)]
    tokens += [SPACE + word for word in sorted({word for made in tasks for word in made.words})]
    tokens += sorted({word for made in tasks for word in made.bare_words})
    return {token: index for index, token in enumerate(dict.fromkeys(tokens))}


def build() -> Tokenizer:
    """The tokenizer, the same on every call."""
    vocab = vocabulary()
    tokenizer = Tokenizer(
        models.WordPiece(vocab, unk_token="<unk>", continuing_subword_prefix="", max_input_chars_per_word=10_000)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=False),
            pre_tokenizers.Split(Regex(PIECE), behavior="isolated"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always", split=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", vocab["<bos>"])]
    )
    # a mask swallows the space before it: the token that fills it brings its own
    tokenizer.add_special_tokens([AddedToken(token, lstrip=token == "<mask>", special=True) for token in SPECIAL])
    return tokenizer


def build_bytes() -> Tokenizer:
    """A tokenizer whose tokens are the special ones without the mask, then the 256 bytes."""
    special = SPECIAL[:-1]
    vocab = {token: index for index, token in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", vocab["<bos>"])]
    )
    return tokenizer


def config(*, with_mask: bool = True) -> dict[str, object]:
    """The content of tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": True,
        "add_eos_token": False,
        **{f"{token[1:-1]}_token": token for token in (SPECIAL if with_mask else SPECIAL[:-1])},
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
        "padding_side": "right",
        "chat_template": CHAT_TEMPLATE,
    }


def main(folder: Path, *, in_bytes: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_bytes() if in_bytes else build()
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True) + "\n", encoding="utf-8")
    text = json.dumps(config(with_mask=not in_bytes), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
    print(f"{tokenizer.get_vocab_size()} tokens -> {folder}", file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "models" / "embedded" / "tokenizer")
    parser.add_argument("--bytes", action="store_true", help="each byte is a token")
    given = parser.parse_args()
    main(given.folder, in_bytes=given.bytes)
