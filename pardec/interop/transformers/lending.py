"""Uses a live transformers model in pardec for the duration of a call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pardec.models.hf.attention import ATTENTION
from pardec.models.hf.causal_lm import HFAdapter
from pardec.models.model import DecodingConfig, LanguageModel

from ...api import Model

_VIEW_ATTRIBUTE = "_pardec_view"  # the attribute of the model that holds pardec's view of it
# The model in use, and its own attention implementations.
_lent: ContextVar[tuple[Any, Any] | None] = ContextVar("pardec_lent", default=None)


@contextmanager
def model_view(model: Any) -> Iterator[Model]:
    """pardec's view of `model`: the same layers and weights, with pardec's attention until the block ends.

    Raises:
        ModelError: this would change the model's logits.
    """
    previous = _attention(model.config)
    token = _lent.set((model, previous))
    try:
        yield Model(_view(model))
    finally:
        _lent.reset(token)
        model.set_attn_implementation(previous)


@contextmanager
def own_attention() -> Iterator[None]:
    """Restores the model's own attention while other code, such as a drafter, may call it."""
    lent = _lent.get()
    if lent is None:
        yield
        return
    model, own = lent
    current = _attention(model.config)
    model.set_attn_implementation(own)
    try:
        yield
    finally:
        model.set_attn_implementation(current)


def _attention(config: Any) -> Any:
    """The attention implementations of the model and its parts, for `set_attn_implementation`."""
    own = config._attn_implementation
    parts = {key: part for key in config.sub_configs if (part := getattr(config, key, None)) is not None}
    return {"": own, **{key: _attention(part) for key, part in parts.items()}} if parts else own


def _modifications(model: Any) -> list[tuple[Any, ...]]:
    """The modules of the model with their hooks (by id) and replaced forwards."""
    return [
        (part, *part._forward_pre_hooks, *part._forward_hooks, vars(part).get("forward"))
        for part in model.modules()
        if part is not model  # which stores this list
    ] + [(vars(model).get("forward"),)]


def _view(model: Any) -> LanguageModel:
    """Creates the view once per model, and again after modifications, since it is tested against the model's logits."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    state = (embedding, head, model.device, model.dtype, _modifications(model))
    cached = vars(model).get(_VIEW_ATTRIBUTE)
    if cached is not None and cached[0] == state:
        model.set_attn_implementation(ATTENTION)
        view: LanguageModel = cached[1]
        return view
    name = getattr(model.config, "name_or_path", "") or type(model).__name__
    adapter = HFAdapter(model, name)
    view = LanguageModel(
        decoder=adapter,
        # End and padding tokens come with each call.
        decoding_config=DecodingConfig(mask_id=None, eos_ids=(), pad_id=0, bos_id=None, shift=1, attention="causal"),
        config=model.config.to_dict(),
        tokenizer=None,
        name=name,
        path=None,
        family=f"transformers {type(model).__name__}",
        device=adapter.device,
        dtype=model.dtype,
        vocab_size=adapter.vocab,
        layers=adapter.layers,
        width=int(embedding.weight.shape[1]),
        limit=adapter.limit,
    )
    # Stored on the model itself, so that it is freed with the model.
    vars(model)[_VIEW_ATTRIBUTE] = (state, view)
    return view
