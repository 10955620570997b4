"""A checkpoint's DecodingConfig: mask, end and padding ids, from its config, its tokenizer and its family."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError, ModelError
from ..families import FamilySpec
from ..families.base import BLOCK_KEYS
from ..model import DecodingConfig
from .arguments import check_whole


def build_decoding_config(
    spec: FamilySpec,
    config: dict[str, Any],
    generation: dict[str, Any],
    tokenizer: Any | None,
    *,
    vocab: int,
    mask_id: int | None = None,
    block: int | None = None,
) -> DecodingConfig:
    """A checkpoint's DecodingConfig; `mask_id` and `block` override. Raises ModelError for ids that are too large."""
    check_whole("mask_id", mask_id)
    check_whole("block", block)
    if isinstance(inner := config.get("text_config"), dict):
        config = {**inner, **config}
    if mask_id is not None and (spec.mask is None or spec.uniform):
        raise ArgumentError(
            f"mask_id={mask_id} was given, but {spec.name} models are not masked models", "leave mask_id out"
        )
    if block is not None and spec.block is None:
        raise ArgumentError(f"block={block} was given, but {spec.name} models are not block-causal", "leave block out")
    if spec.block is not None:
        block = first(block, *map(config.get, BLOCK_KEYS), spec.block)
        if block is None or block < 1:
            raise ModelError(f"block must be at least 1, got {block}")
    mask = vocab if spec.uniform else _mask(spec, config, generation, tokenizer, vocab, mask_id)
    ends = end_ids(config, generation, vocab)
    ends += [
        number
        for number, token in spec.turn_ends.items()
        if _has_token(tokenizer, number, token, vocab) and number not in ends
    ]
    start = spec.start[0] if spec.start and _has_token(tokenizer, *spec.start, vocab) else None
    candidates = (
        start,
        config.get("bos_token_id"),
        generation.get("bos_token_id"),
        getattr(tokenizer, "bos_token_id", None),
    )
    bos = first(*(number for number in candidates if number is None or 0 <= number < vocab))
    return DecodingConfig(
        mask_id=mask,
        eos_ids=tuple(ends),
        pad_id=pad_id(config, generation, tokenizer, ends, vocab),
        bos_id=bos,
        shift=spec.shift,
        attention=spec.attention,
        block=block,
        uniform=spec.uniform,
    )


def end_ids(config: dict[str, Any], generation: dict[str, Any], vocab: int) -> list[int]:
    """End tokens that the generation config and the config name, each once, in that order."""
    ends: list[int] = []
    for source in (generation, config):
        value = source.get("eos_token_id")
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and 0 <= number < vocab and number not in ends:
                ends.append(number)
    return ends


def pad_id(
    config: dict[str, Any], generation: dict[str, Any], tokenizer: Any | None, ends: list[int], vocab: int
) -> int:
    """The padding id: the config's, the tokenizer's, the first end token, or 0."""
    candidates = (config.get("pad_token_id"), generation.get("pad_token_id"), getattr(tokenizer, "pad_token_id", None))
    pad = first(*(number for number in candidates if number is None or 0 <= number < vocab), *ends[:1])
    return 0 if pad is None else pad


def _mask(
    spec: FamilySpec,
    config: dict[str, Any],
    generation: dict[str, Any],
    tokenizer: Any | None,
    vocab: int,
    override: int | None,
) -> int | None:
    if spec.mask is None:
        return None
    default, token = spec.mask
    known = tokenizer.get_vocab().get(token) if tokenizer is not None else None
    mask = first(
        override,
        config.get("mask_token_id"),
        generation.get("mask_token_id"),
        known,
        getattr(tokenizer, "mask_token_id", None),
        default,
    )
    if mask is None or not 0 <= mask < vocab:
        problem = f"mask id {mask} lies outside the vocabulary of {vocab}"
        if override is not None:
            raise ArgumentError(problem, f"mask_id must be below {vocab}, and not negative")
        raise ModelError(problem, "set mask_token_id in config.json, or pass mask_id= (--mask-id)")
    return mask


def _has_token(tokenizer: Any | None, number: int, token: str, vocab: int) -> bool:
    """Whether this checkpoint's `number` is the family's `token`."""
    if number >= vocab:
        return False
    return tokenizer is None or tokenizer.convert_ids_to_tokens(number) == token


def first(*values: int | None) -> int | None:
    """The first value that is not None."""
    return next((value for value in values if value is not None), None)
