"""Loads a model of transformers as a `LanguageModel` when no native family does: causal LMs, and `IMAGE_MODELS`."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError, listed, one_line
from ..files import configs
from ..files.lora import Adapter
from ..files.sources import Source, generation_of, read_json
from ..files.tokenizers import load_tokenizer
from ..files.weights import Published, inspect, read, weight_files
from ..layers.quantize import preferred_dtype, quantize_linears, quantizer
from ..loading.decoding_config import describe_ends, end_ids, pad_id
from ..loading.kinds import IMAGE_MODELS
from ..loading.unread import draft_patterns
from ..model import DecodingConfig, LanguageModel
from ..parallel.placement import choose_dtype, guarded, out_of_memory, short, stored_dtype
from .hf_logging import silence

_LOCAL: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}


def load_adapter(
    source: Source,
    config: dict[str, Any],
    why: str,
    *,
    device: torch.device,
    reason: str,
    dtype: str | torch.dtype,
    device_map: str | dict[str, Any] | None,
    quantize: str | None = None,
    activations: str | None = None,
    lora: Adapter | None = None,
) -> LanguageModel:
    """Loads through transformers; `why` (no native family fits) becomes part of `describe`.

    `lora` is merged into the checkpoint's tensors, which are all in memory at once for that.

    Raises ModelError for a model that cannot be run faithfully.
    """
    from .causal_lm import HFAdapter, Parts

    prepare = None
    if where := IMAGE_MODELS.get(str(config.get("model_type"))):
        if device_map is not None:
            raise ModelError(
                f"{source.name} generates images, and device_map is for text models",
                'name one device in its place: device="cuda"',
            )
        if quantize is not None:
            raise ModelError(
                f"{source.name} generates images, and quantize={quantize} is for text models", "leave quantize out"
            )
        module, _, function = where.partition(":")
        prepare = getattr(import_module(module), function)(source)
    published = inspect(weight_files(source.folder))
    kind, kind_reason = preferred_dtype(quantize, dtype, device) or choose_dtype(dtype, device, stored_dtype(published))
    quantize_weight = None if quantize is None else quantizer(quantize, device, kind, activations)
    placement = device_map if device_map is not None else {"": device}
    state = None if lora is None else _merged_state(lora, published, source, images=prepare is not None)
    make = partial(_load, source, kind, placement, images=prepare is not None, state=state)
    model = guarded(source.name, make, published, kind)
    if lora is not None:
        _refuse_tied(lora, model, source.name)
    if quantize_weight is not None:
        quantize_linears(quantize_weight, model, model.get_input_embeddings().weight)
    parts, imaging = prepare(model) if prepare else (Parts.causal(model), None)
    adapter = HFAdapter(model, source.name, parts)
    flat = {**config, **model.config.get_text_config(decoder=True).to_dict()}
    if imaging is None:
        tokenizer = load_tokenizer(source.tokenizer)
        generation = read_json(source.folder / "generation_config.json")
        configs.check_config(generation, f"{source.name}: generation_config.json")
        decoding_config = _decoding_config(flat, generation, tokenizer, adapter.vocab)
    else:  # the ids in its files are text ids
        tokenizer, decoding_config = (
            None,
            DecodingConfig(mask_id=None, eos_ids=(), pad_id=0, bos_id=None, shift=1, attention="causal"),
        )
    where = f"on {adapter.device} ({reason})" if device_map is None else "spread by device_map"
    return LanguageModel(
        decoder=adapter,
        decoding_config=decoding_config,
        config=config,
        tokenizer=tokenizer,
        generation=generation_of(source.folder, flat),
        name=source.name,
        path=source.folder,
        family=f"transformers {type(model).__name__}",
        device=adapter.device,
        dtype=kind,
        vocab_size=adapter.vocab,
        layers=adapter.layers,
        width=int(adapter.embedding.shape[1]),
        max_positions=flat.get("max_position_embeddings"),
        limit=adapter.limit,
        choice=f"{where}, {short(kind)} ({kind_reason})"
        + ("" if quantize_weight is None else f", {quantize_weight.summary()}")
        + f"; {why}",
        imaging=imaging,
        quantized=quantize,
    )


def _decoding_config(
    config: dict[str, Any], generation: dict[str, Any], tokenizer: Any | None, vocab: int
) -> DecodingConfig:
    ends = end_ids(config, generation, tokenizer, vocab)
    return DecodingConfig(
        mask_id=None,
        eos_ids=tuple(ends),
        pad_id=pad_id(config, generation, tokenizer, list(ends), vocab),
        bos_id=config.get("bos_token_id"),
        shift=1,
        attention="causal",
        sources={"ends": describe_ends(ends)},
    )


def _merged_state(lora: Adapter, published: dict[str, Published], source: Source, *, images: bool) -> dict[str, Tensor]:
    """The checkpoint's tensors, those that the adapter changes merged in float32."""
    state: dict[str, Tensor] = {}
    names = {} if lora.updates.keys() <= published.keys() else _renamed(source, published, images=images)
    merged = lora.merge(
        {names.get(name, name): entry for name, entry in published.items()}, base=source.name, conv1d=True
    )
    read({name: merged[names.get(name, name)] for name in published}, lambda k, v: state.__setitem__(k, v.clone()))
    return state


def _renamed(source: Source, published: dict[str, Published], *, images: bool) -> dict[str, str]:
    """The model's names, which PEFT uses, of tensors that have another name in files, as GPT-NeoX's head.

    They are known by their shape, where just one tensor of the files and one of the model have it and no namesake.
    """
    try:
        with silence():
            model = _empty(source, images=images)
    except Exception:  # loading says why
        return {}
    own = dict(model.named_parameters())
    inner = [(tuple(weight.shape), name) for name, weight in own.items() if name not in published]
    outer = [(entry.shape, name) for name, entry in published.items() if name not in own]
    once, counts = dict(inner), [Counter(shape for shape, _ in each) for each in (inner, outer)]
    return {name: once[shape] for shape, name in outer if [count[shape] for count in counts] == [1, 1]}


def _refuse_tied(lora: Adapter, model: Any, name: str) -> None:
    """Refuses an adapter of an embedding that is the head as well."""
    head = model.get_output_embeddings()
    if head is None or head.weight is not model.get_input_embeddings().weight:
        return
    shared = [key for key, weight in model.named_parameters(remove_duplicate=False) if weight is head.weight]
    changed = [key for key in shared if key in lora.updates]
    if changed:
        raise ModelError(
            f"the adapter {lora.name} changes {listed(changed)}, and in {name} the embedding is tied to the head",
            "merged, it would change both: load a copy of the checkpoint in which they are not tied",
        )


def _auto(*, images: bool) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if images else AutoModelForCausalLM


def _empty(source: Source, *, images: bool) -> Any:
    """The model in a folder, without values."""
    from transformers import AutoConfig

    with torch.device("meta"):
        return _auto(images=images).from_config(AutoConfig.from_pretrained(source.folder, **_LOCAL))


def _load(
    source: Source, dtype: torch.dtype, device_map: Any, *, images: bool, state: dict[str, Tensor] | None = None
) -> Any:
    """The model in a folder, or with the config in that folder and the tensors of `state`, by their names in files."""
    from transformers import GenerationConfig

    kind = _auto(images=images)
    try:
        with silence():
            described: dict[str, Any] = {}
            if state is not None:  # auto classes, which choose by name, accept no state
                empty = _empty(source, images=images)
                kind, described = type(empty), {"config": empty.config, "state_dict": state}
            model, info = kind.from_pretrained(
                source.folder if state is None else None,
                **described,
                dtype=dtype,
                device_map=device_map,
                **_LOCAL,
                output_loading_info=True,
            )
            if state is not None and (source.folder / "generation_config.json").is_file():
                model.generation_config = GenerationConfig.from_pretrained(source.folder)
    except Exception as error:  # configs, weights and models each fail in their own way
        if out_of_memory(error):
            raise
        raise ModelError(f"transformers cannot load {source.name}: {one_line(error)}") from error
    check_info(model, info)
    return model.eval()


def check_info(model: Any, info: dict[str, Any]) -> None:
    """Raises ModelError where the library found other tensors than it needs; MTP layers may follow the model's own."""
    missing, unknown, shapes = (
        sorted(map(str, info.get(key) or ())) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")
    )
    drafts = "|".join(draft_patterns(getattr(model.config, "num_hidden_layers", 0), unknown))
    unknown = [name for name in unknown if not re.fullmatch(drafts, name)]
    groups = (("missing", missing), ("not known", unknown), ("of the wrong shape", shapes))
    problems = [f"{len(names)} {kind}: {listed(names)}" for kind, names in groups if names]
    if problems:
        raise ModelError(
            f"the tensors do not match a {type(model).__name__} of this config; {'; '.join(problems)}",
            "check that config.json and the weights belong together",
        )
