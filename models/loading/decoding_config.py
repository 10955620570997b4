"""A checkpoint's DecodingConfig: mask, end and padding ids, from its config, its tokenizer and its family."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from ..errors import ArgumentError, ModelError, did_you_mean
from ..families import FamilySpec, architecture
from ..families.base import BLOCK_KEYS
from ..files.arguments import check_whole
from ..model import Attention, BlockDenoising, DecodingConfig

_MASKS = ("<|mask|>", "<|MASK|>", "<|mdm_mask|>", "[MASK]")  # mask tokens by name, where a tokenizer declares none


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values that a user sets in place of those in a checkpoint's files."""

    mask_id: int | None = None
    block: int | None = None
    shift: int | None = None
    attention: str | None = None

    def check(self, spec: FamilySpec) -> None:
        """Raises ArgumentError for a value that a family of this kind cannot have."""
        for name in ("mask_id", "block", "shift"):
            check_whole(name, getattr(self, name))
        as_masked = spec.attention == "causal" and self.attention not in (None, "causal")
        if self.mask_id is not None and (spec.mask is None or spec.uniform) and not as_masked:
            raise ArgumentError(
                f"mask_id={self.mask_id} was given, but {spec.name} models are not masked models", "leave mask_id out"
            )
        if self.block is not None and spec.block is None and not (as_masked and self.attention == "block-causal"):
            raise ArgumentError(
                f"block={self.block} was given, but {spec.name} models are not block-causal", "leave block out"
            )
        if self.shift not in (None, 0, 1):
            raise ArgumentError(
                f"shift={self.shift} was given",
                "use 0 if a position predicts its own token, 1 if it predicts the next one",
            )
        if self.attention is not None and self.attention not in get_args(Attention):
            near = did_you_mean(self.attention, get_args(Attention))
            raise ArgumentError(f"unknown attention {self.attention!r}{near}", f"use {', '.join(get_args(Attention))}")


def build_decoding_config(
    spec: FamilySpec,
    config: dict[str, Any],
    generation: dict[str, Any],
    tokenizer: Any | None,
    *,
    vocab: int,
    name: str = "",
    overrides: Overrides | None = None,
) -> DecodingConfig:
    """A checkpoint's DecodingConfig; `overrides` win, and `name` may contain the block length.

    Raises ModelError for ids that are too large.
    """
    overrides = overrides or Overrides()
    overrides.check(spec)
    if isinstance(inner := config.get("text_config"), dict):
        config = {**inner, **config}
    attention: Any = overrides.attention or spec.attention
    causal = attention == "causal"
    shift: Any = overrides.shift if overrides.shift is not None else 1 if causal else spec.shift
    sources = {
        "attention": "as asked" if overrides.attention else f"the family {spec.name}",
        "shift": "as asked" if overrides.shift is not None else f"the family {spec.name}",
    }
    block = None
    as_masked = spec.attention == "causal" and not causal
    if not causal and (spec.block is not None or (as_masked and attention == "block-causal")):
        block, sources["block"] = _block(spec, config, generation, name, overrides.block)
        if block is None:
            raise ArgumentError(
                f"attention={attention!r} was given, and the block length of {name or spec.name} is unknown",
                "pass block= (--block)",
            )
        if block < 1:
            raise ModelError(f"block must be at least 1, got {block}")
    if overrides.attention is None and not spec.imaging:
        check_autoregressive(name or spec.name, spec, config, generation)
    mask, sources["mask"] = _mask(spec, config, generation, tokenizer, vocab, overrides.mask_id, as_masked=as_masked)
    # Only with a causal prefix do masks read the same keys and values as in a causal model.
    both = causal and spec.attention == "causal-prefix" and not spec.uniform and mask is not None
    ends = end_ids(config, generation, tokenizer, vocab)
    for number, token in spec.turn_ends.items():
        if _has_token(tokenizer, number, token, vocab):
            ends.setdefault(number, f"the family {spec.name}")
    sources["ends"] = describe_ends(ends)
    start = spec.start[0] if spec.start and _has_token(tokenizer, *spec.start, vocab) else None
    candidates = (
        start,
        config.get("bos_token_id"),
        generation.get("bos_token_id"),
        getattr(tokenizer, "bos_token_id", None),
    )
    bos = first(*(number for number in candidates if number is None or 0 <= number < vocab))
    return DecodingConfig(
        mask_id=None if causal else mask,
        eos_ids=tuple(ends),
        pad_id=pad_id(config, generation, tokenizer, list(ends), vocab),
        bos_id=bos,
        shift=shift,
        attention=attention,
        block=block,
        uniform=spec.uniform and not causal,
        anchors=_anchors(spec, config, generation, vocab, name) if spec.anchored and not causal else (),
        denoising=BlockDenoising(mask, spec.shift) if both and mask is not None else None,
        sources=sources,
    )


_MASK_KEYS = ("text_mask_token_id", "mask_token_id")  # the first is SDLM's


def check_autoregressive(
    name: str, spec: FamilySpec | None, config: dict[str, Any], generation: dict[str, Any]
) -> None:
    """Refuses to decode token by token a masked model that is published as a model of an autoregressive family.

    Args:
        name: of the checkpoint.
        spec: its family; None where transformers runs it.
        config: its config.json.
        generation: its generation_config.json.

    Raises:
        ModelError: says how to load it as a masked model, and how to decode it token by token anyway.
    """
    if spec is not None and spec.attention != "causal":
        return
    files = {"config.json": config, "generation_config.json": generation}
    named = [(file, key) for file, values in files.items() for key in _MASK_KEYS if values.get(key) is not None]
    if not named:
        return
    where, key = named[0]
    mask = files[where][key]
    problem = f"{where} of {name} has {key}={mask}: it is a masked model, published as an autoregressive one"
    if spec is None:
        raise ModelError(problem, f"no native family supports it; to decode it token by token, remove {key}")
    raise ModelError(
        problem,
        'load it with attention="bidirectional" (--attention), and shift=0 if positions predict their own token; '
        'or with attention="causal" to decode it token by token',
    )


def check_tokenizer(name: str, spec: FamilySpec, config: dict[str, Any], tokenizer: Any | None, vocab: int) -> None:
    """Warns of a model that is decoded token by token, if only its tokenizer has a mask token.

    Args:
        name: of the checkpoint.
        spec: its family.
        config: its config.json, which names no mask token.
        tokenizer: its tokenizer; None where it has none.
        vocab: how many ids the model has.

    Raises:
        ModelError: its architecture says as well that it is no autoregressive model.
    """
    if spec.attention != "causal" or spec.imaging or tokenizer is None:
        return
    token, number = _own_mask(tokenizer)
    if number is None or number >= vocab or (token == "<mask>" and spec.name.startswith("gemma")):  # no id of it
        return
    how = (
        f'load it with attention="bidirectional", mask_id={number} (--attention, --mask-id), and shift=0 if '
        "positions predict their own token"
    )
    problem = f"the tokenizer of {name} has a mask token, {token!r} (id {number}), and its config.json names none"
    if re.search("mask|diffus", architecture(config), re.IGNORECASE):
        raise ModelError(
            f"{problem}; its architecture {architecture(config)!r} says that it is a masked model, published as an "
            "autoregressive one",
            f'{how}; or with attention="causal" to decode it token by token',
        )
    warnings.warn(
        f"{problem}: it is decoded token by token. If it is a masked model, {how}; if it is not, pass "
        'attention="causal"',
        stacklevel=3,
    )


def check_class(name: str, spec: FamilySpec | None, config: dict[str, Any]) -> None:
    """Warns of a model that is decoded token by token as a class of transformers, and names another one.

    Args:
        name: of the checkpoint.
        spec: its family; None where transformers runs it.
        config: its config.json.
    """
    if spec is not None and (spec.attention != "causal" or spec.imaging):
        return
    stated = config.get("auto_map")
    remote = stated.get("AutoModelForCausalLM") if isinstance(stated, dict) else None
    own, kind = remote.rpartition(".")[2] if isinstance(remote, str) else architecture(config), config.get("model_type")
    stem = str(kind).replace("_", "")
    if not own or own.lower() in (f"{stem}forcausallm", f"{stem}model"):
        return
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

    theirs, base = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind), MODEL_MAPPING_NAMES.get(kind)
    if theirs is not None and own not in (theirs, *((base,) if isinstance(base, str) else base or ())):
        warnings.warn(
            f"config.json of {name} names the class {own}, whose code is not run: it is decoded as a {theirs}",
            stacklevel=3,
        )


def _own_mask(tokenizer: Any) -> tuple[str, int | None]:
    """The mask token of a tokenizer and its id: the one that it declares, or a special token with such a name."""
    named, number = getattr(tokenizer, "mask_token", None), getattr(tokenizer, "mask_token_id", None)
    if named is not None and number is not None:
        return str(named), int(number)
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    special = {str(token): int(at) for at, token in added.items() if getattr(token, "special", False)}
    return next(((token, special[token]) for token in _MASKS if token in special), ("", None))


def _block(
    spec: FamilySpec, config: dict[str, Any], generation: dict[str, Any], name: str, override: int | None
) -> tuple[int | None, str]:
    """The width of a block, and where it was found. An anchored canvas is at most as long as the model."""
    if override is not None:
        return override, "as asked"
    if spec.anchored:
        asked, most = generation.get("canvas_length"), spec.positions(config)
        width = spec.block if asked is None else asked
        if type(width) is not int or width < 1:
            raise ModelError(f"canvas_length={width!r} in generation_config.json is no whole number above 0")
        source = f"the family {spec.name}" if asked is None else "generation_config.json: canvas_length"
        return width if most is None else min(width, most), source
    for key in BLOCK_KEYS:
        if config.get(key) is not None:
            return config[key], f"config.json: {key}"
    if spec.block_in_name and (width := re.search(spec.block_in_name, name)):
        return int(width[1]), f"the name {name}"
    return spec.block, f"the family {spec.name}"


def _anchors(
    spec: FamilySpec, config: dict[str, Any], generation: dict[str, Any], vocab: int, name: str
) -> tuple[int, ...]:
    """The tokens after the answer in a canvas: the config's end and start tokens, unless the files turn them off."""
    if generation.get("anchor_eosbos") is False:
        return ()
    ids = {"eos_token_id": config.get("eos_token_id", 2), "bos_token_id": config.get("bos_token_id", 1)}
    for key, number in ids.items():
        if type(number) is not int or not 0 <= number < vocab:
            raise ModelError(
                f"{name or spec.name} has {key}={number!r} in its config.json: this token ends an answer in a canvas",
                f"{key} is one id of the vocabulary of {vocab}; anchor_eosbos=false in generation_config.json leaves "
                "them out",
            )
    return tuple(ids.values())


def end_ids(config: dict[str, Any], generation: dict[str, Any], tokenizer: Any | None, vocab: int) -> dict[int, str]:
    """End tokens and where each was found first: the generation config, the config and the tokenizer, all together.

    Fine-tuned chat models are published whose tokenizer alone names the end of a turn.
    """
    ends: dict[int, str] = {}
    named = {
        "generation_config.json": generation.get("eos_token_id"),
        "config.json": config.get("eos_token_id"),
        "the tokenizer": getattr(tokenizer, "eos_token_id", None),
    }
    for source, value in named.items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and 0 <= number < vocab:
                ends.setdefault(number, source)
    return ends


def describe_ends(ends: Mapping[int, str]) -> str:
    """End tokens in words, with where they were found: `2 (config.json), 7 (the tokenizer)`."""
    return ", ".join(f"{number} ({source})" for number, source in ends.items())


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
    *,
    as_masked: bool = False,
) -> tuple[int | None, str]:
    """The mask id, and where it was found; a canvas of random tokens has the id after the last token's.

    With `as_masked`, a model of an autoregressive family is decoded as a masked one.
    Raises ModelError for an id outside the vocabulary, and for files that name two ids.
    """
    if spec.uniform:
        return vocab, "a canvas of random tokens"
    if spec.mask is None and not as_masked:
        return None, "an autoregressive model"
    default, token = spec.mask or (None, "<|mask|>")
    candidates = {
        "as asked": override,
        "config.json": first(*map(config.get, _MASK_KEYS)),
        "generation_config.json": generation.get("mask_token_id"),
        f"the tokenizer: {token}": tokenizer.get_vocab().get(token) if tokenizer is not None else None,
        "the tokenizer": getattr(tokenizer, "mask_token_id", None),
        f"the family {spec.name}": default,
    }
    stated, other = candidates["config.json"], candidates["generation_config.json"]
    if override is None and stated is not None and other not in (None, stated):
        raise ModelError(
            f"the mask token is {stated} in config.json and {other} in generation_config.json",
            "correct one of them, or pass mask_id= (--mask-id)",
        )
    own = candidates["the tokenizer"]
    if override is None and stated is not None and own not in (None, stated):
        warnings.warn(
            f"the mask token is {stated} in config.json, which is used, and {own} in the tokenizer", stacklevel=4
        )
    source, mask = next(((where, value) for where, value in candidates.items() if value is not None), ("", None))
    if mask is None or not 0 <= mask < vocab:
        problem = f"mask id {mask} lies outside the vocabulary of {vocab}"
        if mask is None:
            problem = f"a {spec.name} model needs the id of its mask token to be decoded as a masked model"
        if override is not None:
            raise ArgumentError(problem, f"mask_id must be below {vocab}, and not negative")
        raise ModelError(problem, "set mask_token_id in config.json, or pass mask_id= (--mask-id)")
    return mask, source


def _has_token(tokenizer: Any | None, number: int, token: str, vocab: int) -> bool:
    """Whether this checkpoint's `number` is the family's `token`."""
    if number >= vocab:
        return False
    return tokenizer is None or tokenizer.convert_ids_to_tokens(number) == token


def first(*values: int | None) -> int | None:
    """The first value that is not None."""
    return next((value for value in values if value is not None), None)
