"""From a name to a model that runs: find the files, recognise the family, read weights and configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

import torch

from .continuous.contracts import ContinuousModel
from .cuda_graphs.capture import Graphs, GraphsArgument, use_graphs
from .cuda_graphs.runner import GraphRunner
from .decoder import Decoder
from .decoder_config import DecoderConfig
from .errors import ArgumentError, ModelError
from .families import FamilySpec, infinity, mar, match, nextstep, var
from .files import configs
from .files.arguments import check, exclusive
from .files.catalog import EMBEDDED, embedded_names
from .files.lora import Adapter, read_adapter
from .files.sources import generation_of, locate, read_json
from .files.tokenizers import load_tokenizer
from .files.weights import Published
from .hf.adapt import load_adapter
from .images.contracts import Checkpoint, CodeImaging, ImagingParts
from .kernels.cpu.memory import return_free_memory
from .layers.quantize import Quantizer, in_blocks, quantizer
from .loading import assemble
from .loading.decoding_config import (
    Overrides,
    build_decoding_config,
    check_autoregressive,
    check_class,
    check_tokenizer,
)
from .loading.kinds import NEXTSTEP
from .loading.native import describe_native
from .loading.packing import Packing, choose_packing
from .loading.recognition import read_checkpoint
from .loading.unread import check_floating, say_assumed, say_left_out, say_without_mtp
from .model import LanguageModel
from .parallel import tensor_parallel
from .parallel.placement import choose_device, choose_dtype, guarded, short, stored_dtype
from .parallel.tensor_parallel import Shares
from .scales.contracts import ScaleModel

__all__ = ["embedded_names", "load", "load_any", "load_continuous", "load_scales"]

_UNBOUNDED = ("bidirectional", "block-causal")  # attention kinds that a window of earlier positions does not fit
DeviceMap = str | dict[str, Any]
AnyModel = TypeVar("AnyModel", bound=LanguageModel | ContinuousModel | ScaleModel)
_OTHER: dict[object, Callable[[Checkpoint], ContinuousModel | ScaleModel]] = {
    "mar": mar.load_mar,
    "var": var.load_var,
    "infinity": infinity.load_infinity,
    **dict.fromkeys(NEXTSTEP, nextstep.load_nextstep),
}


def load(name_or_path: str | os.PathLike[str], **more: Any) -> LanguageModel:
    """`load_any` for a model whose tokens are ids. Raises ModelError for one whose tokens are vectors."""
    wrong = "samples vectors and has no distribution over ids", "use a model whose tokens are ids"
    return _of_kind(LanguageModel, load_any(name_or_path, **more), *wrong)


def load_continuous(name_or_path: str | os.PathLike[str], **more: Any) -> ContinuousModel:
    """`load_any` for a model whose tokens are vectors. Raises ModelError for one whose tokens are ids."""
    wrong = "predicts ids, and a model of vectors is needed", "use one such as tiny-mar"
    return _of_kind(ContinuousModel, load_any(name_or_path, **more), *wrong)


def load_scales(name_or_path: str | os.PathLike[str], **more: Any) -> ScaleModel:
    """`load_any` for a model that predicts token maps. Raises ModelError for any other."""
    wrong = "predicts no token maps, and a model of scales is needed", "use one such as tiny-var"
    return _of_kind(ScaleModel, load_any(name_or_path, **more), *wrong)


def _of_kind(kind: type[AnyModel], model: object, wrong: str, hint: str) -> AnyModel:
    if not isinstance(model, kind):
        raise ArgumentError(f"{getattr(model, 'name', model)} {wrong}", hint)
    return model


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
    shift: int | None = None,
    attention: str | None = None,
    decoder: str | os.PathLike[str] | None = None,
    text_encoder: str | None = None,
    quantize: str | None = None,
    packed: bool | None = None,
    activations: str | None = None,
    tp: bool = False,
    cuda_graphs: GraphsArgument = "auto",
    adapter: str | os.PathLike[str] | None = None,
    images: bool = True,
) -> LanguageModel | ContinuousModel | ScaleModel:
    """Load an embedded name, a local directory or file, or a hub id.

    `device_map` ("auto" or accelerate's dictionary) spreads the layers over devices; `mask_id`, `block`, `shift` and
    `attention` override what the checkpoint says. For an image model, `decoder` is its image tokenizer and
    `text_encoder` encodes its captions, if not beside the weights. `quantize` ("int8", "int4", "fp8") quantizes the
    weights. `packed` keeps the block-quantized matrices of a GGUF file as they are, which is the default on CPUs with a
    kernel for them; `activations` is the type of what these, or on a CPU quantized weights, multiply: "float32" or
    "int8". With `tp`, each of the processes that torchrun started holds a share of every layer. With `cuda_graphs`,
    forwards of few queries whose shapes come again are captured as CUDA graphs and replayed; "auto" does so for native
    models on one CUDA device whose weights are not quantized. `adapter`, a folder or hub id in PEFT's layout,
    is merged into the weights. Without `images`, a model that draws and writes is loaded for its text; nothing changes
    for others.
    Raises ModelError, with what would work, for what cannot be loaded faithfully.
    """
    check(quantize=quantize, device_map=device_map, activations=activations)
    graphs_wanted = True if cuda_graphs is True else None
    if tp:
        exclusive("tp", quantize=quantize, device_map=device_map, cuda_graphs=graphs_wanted)
        device = tensor_parallel.own_device(device)
    lora = None if adapter is None else read_adapter(adapter, offline=offline)
    source = locate(name_or_path, revision=revision, offline=offline)
    target, device_reason = choose_device(device)
    if graphs_wanted:
        exclusive("cuda_graphs", device_map=device_map)
    captured = use_graphs(cuda_graphs, target, source.name, tp=tp, device_map=device_map, quantize=quantize)
    image_decoder = None if decoder is None else os.fspath(decoder)
    found = read_checkpoint(source, attention=attention, adapted=lora is not None)
    config, published, why = found.config, found.published, found.why
    if (other := _OTHER.get(config.get("model_type"))) is not None:
        foreign: dict[str, Any] = {"mask_id": mask_id, "block": block, "shift": shift, "attention": attention}
        foreign |= {"device_map": device_map, "text_encoder": text_encoder, "quantize": quantize, "tp": tp or None}
        foreign |= {"packed": packed, "activations": activations}
        if config["model_type"] == "infinity":  # it reads captions, which are other tensors at every request
            foreign |= {"text_encoder": None, "cuda_graphs": graphs_wanted}
            captured = False
        for name, value in foreign.items():
            if value is not None:
                raise ArgumentError(
                    f"{name}={value} was given, and {source.name} is no language model", f"leave {name} out"
                )
        kind, dtype_reason = choose_dtype(dtype, target, stored_dtype(published))
        if lora is not None:
            published = lora.merge(published, base=source.name)
        files = Checkpoint(source, config, published, target, kind, image_decoder, text_encoder, offline)
        with configs.reading(source.name):
            other_model = guarded(source.name, partial(other, files), published, kind)
        other_model.choice = f"on {target} ({device_reason}), {short(kind)} ({dtype_reason})"
        _described(other_model, lora)
        if captured:
            other_model.capture(Graphs)
            other_model.choice += ", by CUDA graphs"
        return other_model
    if found.spec is None:
        refused: dict[str, Any] = {"mask_id": mask_id, "block": block, "shift": shift, "attention": attention}
        refused |= {"decoder": decoder, "text_encoder": text_encoder}
        refused |= {"tp": tp or None, "cuda_graphs": graphs_wanted}
        refused |= {"packed": packed, "activations": None if in_blocks(quantize, target) else activations}
        for name, value in refused.items():
            if value is not None:
                raise ArgumentError(
                    f"{name}={value} was given, but {source.name} runs through transformers as an AR model ({why})",
                    f"leave {name} out",
                )
        check_autoregressive(source.name, None, config, read_json(source.folder / "generation_config.json"))
        check_class(source.name, None, config)
        check_floating(source.name, config, published)
        placement: Any = {"device": target, "reason": device_reason, "dtype": dtype, "device_map": device_map}
        placement |= {"quantize": quantize, "activations": activations}
        try:
            return _described(load_adapter(source, config, why, **placement, lora=lora), lora)
        except ModelError as error:
            if match(config, published) is None:
                raise
            raise ModelError(f"{error}; natively, {why}", error.hint) from error
    native = describe_native(found, target, dtype=dtype, quantize=quantize, adapter=lora)
    spec, shape, published, kind = native.spec, native.shape, native.published, native.dtype
    # The ids of an image model are codes: a tokenizer in its folder belongs to its text encoder.
    draws = bool(spec.imaging) and (images or not spec.text)
    tokenizer = None if draws else load_tokenizer(source.tokenizer)
    generation = read_json(source.folder / "generation_config.json")
    configs.check_config(generation, f"{source.name}: generation_config.json")
    decoding_config = build_decoding_config(
        spec,
        config,
        generation,
        tokenizer,
        vocab=shape.vocab,
        name=source.name,
        overrides=Overrides(mask_id, block, shift, attention),
    )
    if attention is None and source.folder.parent != EMBEDDED:
        check_class(source.name, spec, config)
        check_tokenizer(source.name, spec, config, tokenizer, shape.vocab)
    quantization = None if quantize is None else quantizer(quantize, target, kind, activations)
    shares = tensor_parallel.shares(target, shape) if tp else None
    packing, _ = choose_packing(
        source,
        target,
        dtype,
        packed,
        activations if quantization is None else None,
        quantize=quantize,
        device_map=device_map,
        adapter=adapter,
        tp=tp or None,
    )
    make_stack = partial(_native, spec, shape, published, kind, target, device_map, quantization or shares, packing)
    stack = guarded(source.name, make_stack, published, kind)
    say_left_out(source.name, spec, published)
    say_without_mtp(source.name, config, shape.layers, published)
    say_assumed(source.name, spec, config)
    entry = stack.embed_device
    where = f"on {entry} ({device_reason})"
    if device_map is not None:
        where = f"spread by device_map over {', '.join(dict.fromkeys(map(str, stack.devices())))}"
    if shares is not None:
        shares.divide(stack)
        where += f" and {shares.count - 1} more of {shares.count} processes"
    imaging = None
    if draws:
        named = (image_decoder, text_encoder, offline, shape.vocab)
        parts = ImagingParts(source, config, published, entry, kind, *named, lambda: stack.embedding)
        with configs.reading(source.name):
            imaging = _imaging(spec.imaging, parts)
    if captured:
        where += ", by CUDA graphs"
    model = LanguageModel(
        decoder=GraphRunner(stack, Graphs(), automatic=cuda_graphs == "auto") if captured else stack,
        decoding_config=decoding_config,
        config=config,
        tokenizer=tokenizer,
        generation=generation_of(source.folder, config),
        name=source.name,
        path=source.folder,
        family=spec.name,
        device=entry,
        dtype=kind,
        vocab_size=shape.vocab,
        layers=shape.layers,
        width=shape.width,
        max_positions=native.positions,
        limit=shape.least_window if decoding_config.attention in _UNBOUNDED else None,
        recognized="" if source.folder.parent == EMBEDDED else spec.evidence(config),
        choice=f"{where}, {short(kind)} ({native.dtype_reason})"
        + ("" if quantization is None else f", {quantization.summary()}")
        + ("" if packing is None else f", {packing.summary()}"),
        imaging=imaging,
        quantized=quantize,
        processes=1 if shares is None else shares.count,
        whole=None if shares is None else shares.parameters,
        embedding_scale=shape.embedding_scale,
    )
    return_free_memory()
    return _described(model, lora)


def _described(model: AnyModel, lora: Adapter | None) -> AnyModel:
    """The model with a name and a description that mention the adapter."""
    if lora is not None:
        model.name, model.adapter = f"{model.name}+{lora.name}", lora.name
        model.choice += f", {lora.summary()}"
    return model


def _imaging(builder: str, parts: ImagingParts) -> CodeImaging:
    module, _, name = builder.partition(":")
    imaging: CodeImaging = getattr(import_module(module), name)(parts)
    return imaging


def _native(
    spec: FamilySpec,
    shape: DecoderConfig,
    published: dict[str, Published],
    dtype: torch.dtype,
    device: torch.device,
    device_map: DeviceMap | None,
    finish: Quantizer | Shares | None,
    packing: Packing | None,
) -> Decoder:
    decoder = assemble.empty(shape)
    expected = assemble.targets(spec, decoder, published)
    used = assemble.check(spec, expected, published, shape)
    if device_map is None:
        more: Any = {"memory": assemble.matmul_memory} if finish is None else {"finish": finish}
        if packing is not None:
            more["complete"] = packing.weights(decoder, expected, used, dtype)
        assemble.fill(spec, decoder, expected, used, dtype=dtype, device_of=lambda name: device, **more)
        if finish is None:
            assemble.copy_tied_head(decoder)
        elif isinstance(finish, Quantizer) and decoder.config.tied and not finish.embeddings:
            finish.skip("head.weight", "it is the embedding")
        return decoder
    from .parallel.placement import spread

    return spread(
        decoder,
        device_map,
        dtype,
        lambda device_of: assemble.fill(spec, decoder, expected, used, dtype=dtype, device_of=device_of),
    )
