"""Puts the conditions of a request, such as the class or text of an image, before a model's tokens."""

from __future__ import annotations

from dataclasses import replace

from pardec.models.errors import ModelError
from pardec.models.images.conditioned import Conditioned, Prefix
from pardec.models.model import LanguageModel

from .request import Request


def conditioned_model(model: LanguageModel, request: Request, prefix: Prefix | None = None) -> LanguageModel:
    """`model` with the request's conditions before its tokens, guided by `cfg`; the model itself without conditions.

    Args:
        prefix: the model's encoding of the conditions, if it exists already; a draft model encodes them itself.

    Raises:
        ModelError: it does not generate images.
    """
    if not request.conditions:
        return model
    if model.imaging is None:
        raise ModelError(
            f"{model.name} generates no images, and the request has image conditions", "use an image model"
        )
    imaging = model.imaging if request.size is None else model.imaging.resized(*request.size)
    prefix = prefix if prefix is not None else imaging.prefix(request.conditions)
    stack = Conditioned(model.decoder, prefix, request.prompts, cfg=request.cfg, interval=request.cfg_interval)
    return replace(model, decoder=stack, imaging=imaging)
