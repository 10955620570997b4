"""From the metadata of a GGUF file to the files of a fast tokenizer: vocabulary, merges, special tokens, template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...errors import ModelError, one_line
from .header import Header
from .keys import ORIGINAL

_PREFIX = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)  # token types
# Tokens that end a text, by the key of their id or by their text, as llama.cpp finds them.
_ENDS = tuple(f"{name}_token_id" for name in ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"))
_END_TEXTS = frozenset(
    (
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "</s>", "<EOT>"),
        *("_<EOT>", "[EOT]", "[EOS]", "<end_of_turn>", "<end_of_utterance>", "<|return|>", "<|call|>", "<|calls|>"),
        *("<|flush|>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
    )
)
# Texts of the tokens that end a filled gap, where the file names no id for them.
_GAP_ENDS = {
    "fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep_token_id": ("<|file_sep|>",),
}
_SPECIAL = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id"}
_SPECIAL |= {"pad_token": "padding_token_id", "mask_token": "mask_token_id"}

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_BAILING = (  # LLaDA's
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# How text is split before it is encoded, by the name in the file: a pattern, or "" for GPT-2's own.
_SPLITS = {"gpt-2": "", "smollm": "", "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "qwen2": _QWEN2}
_SPLITS |= dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING)


def special_ids(header: Header, vocabulary: int) -> dict[str, Any]:
    """The ids of special tokens as configs name them; eos_token_id has every token that ends a text."""
    values = {name: _id(header, name, vocabulary) for name in (*_ENDS, *_SPECIAL.values())}
    tokens, texts = header.metadata.get(_PREFIX + "tokens"), _end_texts(values)
    by_text = [i for i, token in enumerate(tokens) if token in texts] if isinstance(tokens, list) else []
    named = [values[name] for name in _ENDS if values[name] is not None]
    ends = list(dict.fromkeys([*named, *(number for number in by_text if number < vocabulary)]))
    ids = {"bos_token_id": values["bos_token_id"], "pad_token_id": values["padding_token_id"]}
    ids["mask_token_id"] = values["mask_token_id"]
    ids["eos_token_id"] = ends[0] if len(ends) == 1 else ends or None  # type: ignore[assignment]
    return {name: value for name, value in ids.items() if value is not None}


def tokenizer_files(header: Header, vocabulary: int, positions: int) -> dict[str, str]:
    """The content of the tokenizer's files by name; none if the file has no tokenizer.

    Raises:
        ModelError: the kind of tokenizer is not supported, or its lists contradict each other.
    """
    fields, file = header.metadata, header.file
    if _PREFIX + "model" not in fields:
        return {}
    kind, split = fields[_PREFIX + "model"], fields.get(_PREFIX + "pre")
    if kind != "gpt2":
        raise ModelError(
            f"{file} has a tokenizer of type {str(kind)[:80]!r}, and only gpt2 (byte-level BPE) is supported", ORIGINAL
        )
    if split is None:
        raise ModelError(
            f"{file} lacks {_PREFIX}pre, which says how its tokenizer splits text",
            "add the original model's value to a copy: gguf-new-metadata --pre-tokenizer llama-bpe IN OUT",
        )
    if split not in _SPLITS:
        raise ModelError(
            f"{file}: its tokenizer splits text like {str(split)[:80]!r} ({_PREFIX}pre), which is not supported",
            f"supported: {', '.join(_SPLITS)}",
        )
    tokens, merges = _texts(header, "tokens"), _texts(header, "merges")
    types = fields.get(_PREFIX + "token_type", [1] * len(tokens))
    if not isinstance(types, list):
        raise ModelError(f"{file}: {_PREFIX}token_type is no list")
    if strange := [own for own in types if own not in range(_NORMAL, _BYTE + 1)]:
        raise ModelError(f"{file}: {_PREFIX}token_type has the entry {strange[0]!r}, and types are 1 to 6")
    if len(tokens) > vocabulary or len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise ModelError(
            f"{file}: {len(tokens)} tokens, {len(set(tokens))} different ones, {len(types)} types and "
            f"{vocabulary} embeddings do not fit together"
        )
    special = {name: _id(header, key, len(tokens)) for name, key in _SPECIAL.items()}
    settings: dict[str, Any] = {name: tokens[index] for name, index in special.items() if index is not None}
    like_llama3 = _SPLITS[split] == _LLAMA3  # which has it by default
    adds_bos = fields.get(_PREFIX + "add_bos_token", like_llama3) is True and special["bos_token"] is not None
    adds_eos = fields.get(_PREFIX + "add_eos_token") is True
    for end in ("bos", "eos"):
        if fields.get(f"{_PREFIX}add_{end}_token") is True and special[f"{end}_token"] is None:
            raise ModelError(
                f"{file}: {_PREFIX}add_{end}_token is true, and {_PREFIX}{end}_token_id names none of its tokens",
                f"name the token in a copy: gguf-new-metadata --special-token-by-id {end} ID IN OUT",
            )
    settings |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": adds_bos,
        "add_eos_token": adds_eos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": positions,
    }
    try:
        texts = _end_texts({name: _id(header, name, len(tokens)) for name in _GAP_ENDS})
        types = [_CONTROL if token in texts else own for token, own in zip(tokens, types, strict=True)]
        named = set(special.values())
        types = [_CONTROL if own in (_UNUSED, _BYTE) and index in named else own for index, own in enumerate(types)]
        ends = special["bos_token"] if adds_bos else None, special["eos_token"] if adds_eos else None
        tokenizer = _byte_level(tokens, merges, types, split, ends)
    except Exception as error:  # the library raises Exception itself
        raise ModelError(f"the tokenizer of {file} cannot be built: {one_line(error)}") from error
    files = {"tokenizer.json": tokenizer, "tokenizer_config.json": json.dumps(settings, indent=2)}
    template = fields.get("tokenizer.chat_template")
    if isinstance(template, str) and template:
        files["chat_template.jinja"] = template
    return files


def _end_texts(ids: Mapping[str, int | None]) -> frozenset[str]:
    """The texts of tokens that end a text, where the file names these ids."""
    return _END_TEXTS.union(*(texts for name, texts in _GAP_ENDS.items() if ids[name] is None))


def _byte_level(
    tokens: list[str], merges: list[str], types: list[int], split: str, ends: tuple[int | None, int | None]
) -> str:
    """tokenizer.json; `ends` are the ids that every text begins and ends with."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    halves = [merge.split(" ") for merge in merges]
    if any(len(pair) != 2 for pair in halves):
        raise ValueError("a merge is no pair of tokens")
    pairs = [(left, right) for left, right in halves]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    whole_words = _SPLITS[split] == _LLAMA3
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=whole_words))
    before: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if split == "smollm" else []
    if _SPLITS[split]:
        before.append(pre_tokenizers.Split(Regex(_SPLITS[split]), behavior="isolated"))
    before.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not _SPLITS[split]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(before)
    tokenizer.decoder = decoders.ByteLevel()
    if split == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    for kinds, add in (((_CONTROL, _UNKNOWN), tokenizer.add_special_tokens), ((_USER,), tokenizer.add_tokens)):
        chosen = [token for token, own in zip(tokens, types, strict=True) if own in kinds]
        add([AddedToken(token, normalized=False, special=_USER not in kinds) for token in chosen])
    if any(number is not None for number in ends):
        start, end = ("" if number is None else tokens[number] for number in ends)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[part for part in (start, "$A", end) if part],
            pair=[part for part in (start, "$A", end, start and f"{start}:1", "$B:1", end and f"{end}:1") if part],
            special_tokens=[(tokens[number], number) for number in dict.fromkeys(ends) if number is not None],
        )
    if tokenizer.get_vocab_size() != len(tokens):
        raise ValueError("special tokens are not in the vocabulary")
    text: str = tokenizer.to_str()
    without = [token for token, own in zip(tokens, types, strict=True) if own in (_UNUSED, _BYTE)]
    if without:  # no text has these, and they print as nothing
        content = json.loads(text)
        for token in without:
            del content["model"]["vocab"][token]
        text = json.dumps(content, ensure_ascii=False)
    return text


def _texts(header: Header, name: str) -> list[str]:
    value = header.metadata.get(_PREFIX + name)
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ModelError(f"{header.file}: {_PREFIX}{name} is no list of texts")
    return value


def _id(header: Header, name: str, vocabulary: int) -> int | None:
    """A special token's id; None where the file names none, or one outside the vocabulary."""
    value = header.metadata.get(_PREFIX + name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocabulary else None
