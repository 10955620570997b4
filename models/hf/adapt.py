"""Loading a model of transformers as a `LanguageModel`, when no native family takes it: causal LMs, and `PICTURES`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from ..errors import ModelError, listed, one_line
from ..loading import configs
from ..loading.decoding_config import end_ids, pad_id
from ..loading.kinds import PICTURES
from ..loading.placement import choose_dtype, guarded, out_of_memory, short, stored_dtype
from ..loading.quantize import fitting, quantize_linears, quantizer
from ..loading.sources import Source, read_json
from ..loading.tokenizers import load_tokenizer
from ..loading.weights import inspect, weight_files
from ..model import DecodingConfig, LanguageModel
from .hf_logging import quiet


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
) -> LanguageModel:
    """Load through transformers; `why` no native family does is repeated in what `describe` says.

    Raises ModelError for what cannot be run faithfully.
    """
    from .causal_lm import HFAdapter, Parts

    opened = None
    if where := PICTURES.get(str(config.get("model_type"))):
        if device_map is not None:
            raise ModelError(
                f"{source.name} draws pictures, and device_map spreads models of text",
                'name one device in its place: device="cuda"',
            )
        if quantize is not None:
            raise ModelError(f"{source.name} draws pictures, and quantize={quantize} is of models of text")
        module, _, function = where.partition(":")
        opened = getattr(import_module(module), function)(source)
    published = inspect(weight_files(source.folder))
    kind, kind_reason = fitting(quantize, dtype) or choose_dtype(dtype, device, stored_dtype(published))
    smaller = None if quantize is None else quantizer(quantize, device, kind)
    placed = device_map if device_map is not None else {"": device}
    model = guarded(
        source.name, lambda: _pretrained(source, kind, placed, pictures=opened is not None), published, kind
    )
    if smaller is not None:
        quantize_linears(smaller, model, model.get_input_embeddings().weight)
    parts, imaging = opened(model) if opened else (Parts.causal(model), None)
    adapter = HFAdapter(model, source.name, parts)
    flat = {**config, **model.config.get_text_config(decoder=True).to_dict()}
    if imaging is None:
        tokenizer = load_tokenizer(source.tokenizer)
        generation = read_json(source.folder / "generation_config.json")
        configs.checked(generation, f"{source.name}: generation_config.json")
        decoding_config = _decoding_config(flat, generation, tokenizer, adapter.vocab)
    else:  # what its files say of ids is said of its text
        tokenizer, decoding_config = (
            None,
            DecodingConfig(mask_id=None, eos_ids=(), pad_id=0, bos_id=None, shift=1, attention="causal"),
        )
    place = f"on {adapter.device} ({reason})" if device_map is None else "spread by device_map"
    return LanguageModel(
        decoder=adapter,
        decoding_config=decoding_config,
        config=config,
        tokenizer=tokenizer,
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
        choice=f"{place}, {short(kind)} ({kind_reason})"
        + ("" if smaller is None else f", {smaller.said()}")
        + f"; {why}",
        imaging=imaging,
        quantized=quantize,
    )


def _decoding_config(
    config: dict[str, Any], generation: dict[str, Any], tokenizer: Any | None, vocab: int
) -> DecodingConfig:
    ends = end_ids(config, generation, vocab)
    return DecodingConfig(
        mask_id=None,
        eos_ids=tuple(ends),
        pad_id=pad_id(config, generation, tokenizer, ends, vocab),
        bos_id=config.get("bos_token_id"),
        shift=1,
        attention="causal",
    )


def _pretrained(source: Source, dtype: torch.dtype, device_map: Any, *, pictures: bool) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    try:
        with quiet():
            model, info = (AutoModelForImageTextToText if pictures else AutoModelForCausalLM).from_pretrained(
                source.folder,
                dtype=dtype,
                device_map=device_map,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # configs, weights and models each fail in their own way
        if out_of_memory(error):
            raise
        raise ModelError(f"transformers cannot load {source.name}: {one_line(error)}") from error
    groups = (("missing", "missing_keys"), ("not known", "unexpected_keys"), ("of the wrong shape", "mismatched_keys"))
    said = [
        f"{len(info[key])} {kind}: {listed(sorted(str(entry) for entry in info[key]))}"
        for kind, key in groups
        if info.get(key)
    ]
    if said:
        raise ModelError(
            f"the tensors do not match a {type(model).__name__} of this config; {'; '.join(said)}",
            "check that config.json and the weights belong together",
        )
    return model.eval()
