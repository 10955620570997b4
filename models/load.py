"""From a name to a model that runs: find the files, recognise the family, read the weights, establish the facts."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import torch

from . import assemble, configs, tensor_parallel
from .adapt import load_adapter
from .arguments import alone, check
from .captured import Captured
from .catalog import embedded_names
from .continuous import ContinuousModel
from .decoder import Decoder
from .errors import ArgumentError, ModelError
from .facts import establish
from .families import FAMILIES, FamilySpec, Unsupported, architecture, mar, match
from .families.llamagen import read_config
from .imaging import Imaging, Picturing
from .kinds import PICTURES
from .language_model import LanguageModel
from .placement import choose_device, choose_dtype, guarded, short, stored_dtype
from .quantize import Quantizer, fitting, quantizer
from .recording import Graphs, check_graphs
from .sources import MAR_FILE, Source, locate, read_json
from .tensor_parallel import Shares
from .tokenizers import load_tokenizer
from .weights import Published, inspect, weight_files

__all__ = ["embedded_names", "load", "load_any", "load_continuous"]

DeviceMap = str | dict[str, Any]


def load(name_or_path: str | os.PathLike[str], **more: Any) -> LanguageModel:
    """`load_any` for a model whose tokens are ids. Raises ModelError for one whose tokens are vectors."""
    made = load_any(name_or_path, **more)
    if not isinstance(made, LanguageModel):
        raise ArgumentError(f"{made.name} draws vectors and says no law of tokens", "name a model whose tokens are ids")
    return made


def load_continuous(name_or_path: str | os.PathLike[str], **more: Any) -> ContinuousModel:
    """`load_any` for a model whose tokens are vectors. Raises ModelError for one whose tokens are ids."""
    made = load_any(name_or_path, **more)
    if isinstance(made, LanguageModel):
        raise ArgumentError(
            f"{made.name} says laws of ids, and a model of vectors is needed", "name one such as tiny-mar"
        )
    return made


def load_any(
    name_or_path: str | os.PathLike[str],
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    device_map: DeviceMap | None = None,
    revision: str | None = None,
    offline: bool = False,
    mask_id: int | None = None,
    block: int | None = None,
    decoder: str | os.PathLike[str] | None = None,
    text_encoder: str | None = None,
    quantize: str | None = None,
    tp: bool = False,
    cuda_graphs: bool = False,
) -> LanguageModel | ContinuousModel:
    """Load an embedded name, a local directory or file, or a hub id.

    `device_map` ("auto" or accelerate's dictionary) spreads the layers over devices; `mask_id` and `block` override
    what the checkpoint says. Of a model of pictures, `decoder` is its image tokenizer and `text_encoder` what reads its
    captions, where they do not lie beside the weights. `quantize` ("int8", "int4", "fp8") keeps matrices in fewer bits.
    With `tp`, each of the processes that torchrun started holds a share of every layer. With `cuda_graphs`, forwards of
    few queries whose shapes come again are recorded and run again without the host.
    Raises ModelError, with what would work, for what cannot be loaded faithfully.
    """
    check(quantize=quantize, device_map=device_map)
    if tp:
        alone("tp", quantize=quantize, device_map=device_map, cuda_graphs=cuda_graphs or None)
        device = tensor_parallel.place(device)
    source = locate(name_or_path, revision=revision, offline=offline)
    place, place_reason = choose_device(device)
    if cuda_graphs:
        alone("cuda_graphs", device_map=device_map)
        check_graphs(place, source.name)
    asked = None if decoder is None else os.fspath(decoder)
    with configs.reading(source.name):
        config, published = described(source)
    with suppress(ModelError):  # what is wrong with the files themselves is said when they are needed
        published = published or inspect(weight_files(source.folder))
    configs.checked(config, f"{source.name}: config.json", published)
    if config.get("model_type") == "mar":
        foreign = {"mask_id": mask_id, "block": block, "device_map": device_map, "text_encoder": text_encoder}
        foreign |= {"quantize": quantize, "tp": tp or None, "cuda_graphs": cuda_graphs or None}
        for name, given in foreign.items():
            if given is not None:
                raise ArgumentError(
                    f"{name}={given} was given, and {source.name} draws classes from vectors", f"leave {name} out"
                )
        kind, kind_reason = choose_dtype(dtype, place, stored_dtype(published))
        choice = f"on {place} ({place_reason}), {short(kind)} ({kind_reason})"
        make = partial(mar.load_mar, source, config, published, device=place, dtype=kind, decoder=asked, choice=choice)
        with configs.reading(source.name):
            return guarded(source.name, make, published, kind)
    with configs.reading(source.name):
        spec, why = _recognise(config)
    if spec is None:
        refused: dict[str, Any] = {"mask_id": mask_id, "block": block, "decoder": decoder, "text_encoder": text_encoder}
        refused |= {"tp": tp or None, "cuda_graphs": cuda_graphs or None}
        for name, value in refused.items():
            if value is not None:
                raise ArgumentError(
                    f"{name}={value} was given, but {source.name} runs through transformers as an AR model ({why})",
                    f"leave {name} out",
                )
        placed: Any = {"device": place, "reason": place_reason, "dtype": dtype, "device_map": device_map}
        return load_adapter(source, config, why, **placed, quantize=quantize)
    if config.get("quantization_config"):
        raise ModelError(
            f"{source.name} is quantised, which is not supported", "load the 16-bit checkpoint it was made from"
        )
    # The ids of a model of pictures are codes: a tokenizer beside its weights belongs to what reads its captions.
    tokenizer = None if spec.imaging else load_tokenizer(source.tokenizer)
    with configs.reading(source.name):
        shape, positions, limit = spec.decoder(config), spec.positions(config), spec.sliding(config)
    generation = read_json(source.folder / "generation_config.json")
    configs.checked(generation, f"{source.name}: generation_config.json")
    facts = establish(spec, config, generation, tokenizer, vocab=shape.vocab, mask_id=mask_id, block=block)
    published = published or inspect(weight_files(source.folder))
    stored = stored_dtype(published)
    kind, kind_reason = fitting(quantize, dtype) or choose_dtype(dtype, place, stored)
    smaller = None if quantize is None else quantizer(quantize, place, kind)
    shares = tensor_parallel.shares(place, shape) if tp else None
    make_stack = partial(_native, spec, config, published, kind, place, device_map, smaller or shares)
    stack = guarded(source.name, make_stack, published, kind)
    entry = stack.embed_device
    where = f"on {entry} ({place_reason})" if device_map is None else f"spread by device_map over {_spread(stack)}"
    if shares is not None:
        shares.divide(stack)
        where += f" and {shares.count - 1} more of {shares.count} processes"
    imaging = None
    if spec.imaging:
        parts = Picturing(source, config, published, shape.vocab, entry, kind, asked, text_encoder, offline)
        imaging = _built(spec.imaging, parts)
    if cuda_graphs:
        where += ", by CUDA graphs"
    return LanguageModel(
        decoder=Captured(stack, Graphs()) if cuda_graphs else stack,
        facts=facts,
        config=config,
        tokenizer=tokenizer,
        name=source.name,
        path=source.folder,
        family=spec.name,
        device=entry,
        dtype=kind,
        vocab_size=shape.vocab,
        layers=shape.layers,
        width=shape.width,
        max_positions=positions,
        limit=limit,
        choice=f"{where}, {short(kind)} ({kind_reason})" + ("" if smaller is None else f", {smaller.said()}"),
        imaging=imaging,
        quantized=quantize,
        processes=1 if shares is None else shares.count,
        whole=None if shares is None else shares.numbers,
    )


def described(source: Source) -> tuple[dict[str, Any], dict[str, Published]]:
    """The configuration, stated or read off the tensors, and the tensors where it took to look at them."""
    if source.file is not None:
        published = inspect([source.file])
        if mar.MARK in published:
            return mar.described(source.folder, published, source.file.stem), published
        return read_config(source.file, published), published
    if (source.folder / MAR_FILE).is_file() or read_json(source.folder / "config.json").get("model_type") == "mar":
        published = inspect(weight_files(source.folder))
        return mar.described(source.folder, published), published
    return read_json(source.folder / "config.json", required=True), {}


def _built(where: str, parts: Picturing) -> Imaging:
    module, _, name = where.partition(":")
    made: Imaging = getattr(import_module(module), name)(parts)
    return made


def _recognise(config: dict[str, Any]) -> tuple[FamilySpec | None, str]:
    """The family, or None and why transformers has to run the model. Raises ModelError if it cannot either."""
    model_type, arch = str(config.get("model_type", "")), architecture(config)
    spec = match(config)
    if spec is not None:
        try:
            spec.decoder(config)
            return spec, ""
        except Unsupported as error:
            if not _known_to_transformers(model_type):
                raise
            return None, str(error)
    if _known_to_transformers(model_type):
        return None, f"no native family for model_type {model_type}"
    named = (
        f"model_type {model_type!r}" + (f" with architecture {arch!r}" if arch else "")
        if model_type
        else "no model_type"
    )
    raise ModelError(
        f"config.json has {named}, which no family matches",
        f"families: {', '.join(sorted(FAMILIES))}; other causal LMs run if transformers knows their model_type",
    )


def _known_to_transformers(model_type: str) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or model_type in PICTURES


def _native(
    spec: FamilySpec,
    config: dict[str, Any],
    published: dict[str, Published],
    dtype: torch.dtype,
    device: torch.device,
    device_map: DeviceMap | None,
    finish: Quantizer | Shares | None,
) -> Decoder:
    decoder = assemble.empty(spec.decoder(config))
    wanted = assemble.targets(spec, decoder)
    used = assemble.check(spec, wanted, published, decoder.config.tied)
    if device_map is None:
        more: Any = {"memory": assemble.for_products} if finish is None else {"finish": finish}
        assemble.fill(spec, decoder, wanted, used, dtype=dtype, device_of=lambda name: device, **more)
        if finish is None:
            assemble.again(decoder)
        elif isinstance(finish, Quantizer) and decoder.config.tied:
            finish.keep("head.weight", "it is the embedding")
        return decoder
    from .dispatch import spread

    return spread(
        decoder,
        device_map,
        dtype,
        lambda device_of: assemble.fill(spec, decoder, wanted, used, dtype=dtype, device_of=device_of),
    )


def _spread(decoder: Decoder) -> str:
    return ", ".join(dict.fromkeys(str(device) for device in decoder.devices()))
