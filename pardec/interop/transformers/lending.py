"""A live transformers model, lent to pardec for the length of a call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pardec.models.hf.attention import ATTENTION
from pardec.models.hf.causal_lm import HFAdapter
from pardec.models.model import DecodingConfig, LanguageModel

from ...api import Model

_KEPT = "_pardec_view"  # the attribute of the model that holds pardec's view of it


@contextmanager
def lent(model: Any) -> Iterator[Model]:
    """pardec's view of `model`: its own layers and weights, which attend through pardec until the block ends.

    Raises:
        ModelError: run like that, it would not give its own logits.
    """
    before = _attention(model.config)
    try:
        yield Model(_view(model))
    finally:
        model.set_attn_implementation(before)


def _attention(config: Any) -> Any:
    """How the model and its parts attend, as `set_attn_implementation` takes it."""
    own = config._attn_implementation
    parts = {key: part for key in config.sub_configs if (part := getattr(config, key, None)) is not None}
    return {"": own, **{key: _attention(part) for key, part in parts.items()}} if parts else own


def _altered(model: Any) -> list[tuple[Any, ...]]:
    """The modules of the model and what hangs on each: hooks by their numbers, a forward that was put in."""
    return [
        (part, *part._forward_pre_hooks, *part._forward_hooks, vars(part).get("forward"))
        for part in model.modules()
        if part is not model  # which holds this
    ] + [(vars(model).get("forward"),)]


def _view(model: Any) -> LanguageModel:
    """Made once a model, since it is tried against the model's own logits; anew when what it rests on has changed."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    state = (embedding, head, model.device, model.dtype, _altered(model))
    known = vars(model).get(_KEPT)
    if known is not None and known[0] == state:
        model.set_attn_implementation(ATTENTION)
        view: LanguageModel = known[1]
        return view
    name = getattr(model.config, "name_or_path", "") or type(model).__name__
    stack = HFAdapter(model, name)
    view = LanguageModel(
        decoder=stack,
        # What ends a text and what fills it up is said in each call.
        decoding_config=DecodingConfig(mask_id=None, eos_ids=(), pad_id=0, bos_id=None, shift=1, attention="causal"),
        config=model.config.to_dict(),
        tokenizer=None,
        name=name,
        path=None,
        family=f"transformers {type(model).__name__}",
        device=stack.device,
        dtype=model.dtype,
        vocab_size=stack.vocab,
        layers=stack.layers,
        width=int(embedding.weight.shape[1]),
        limit=stack.limit,
    )
    # On the model itself, so that it goes when the model goes.
    vars(model)[_KEPT] = (state, view)
    return view
