"""A model as one request sees it: behind the conditions of its rows."""

from __future__ import annotations

from dataclasses import replace

from pardec.models.errors import ModelError
from pardec.models.images.conditioned import Conditioned, Prefix
from pardec.models.model import LanguageModel

from .request import Request


def dressed(model: LanguageModel, request: Request, prefix: Prefix | None = None) -> LanguageModel:
    """`model` behind the request's conditions, guided as it asks; the model itself where there are none.

    `prefix` is what the model makes of the conditions, where that is known. A drafting model makes its own of them.
    Raises ModelError where it cannot.
    """
    if not request.conditions:
        return model
    if model.imaging is None:
        raise ModelError(f"{model.name} draws no pictures", "a picture is drafted by a model of pictures")
    made = prefix if prefix is not None else model.imaging.prefix(request.conditions)
    stack = Conditioned(model.decoder, made, request.prompts, cfg=request.cfg, interval=request.cfg_interval)
    return replace(model, decoder=stack)
