"""Checks whether a checkpoint can draft for a target, and on which device."""

from __future__ import annotations

import torch

from pardec.models.errors import ModelError, SpecError
from pardec.models.model import LanguageModel


def check_causal(drafter: LanguageModel) -> None:
    """Raises ModelError unless `drafter` predicts from left to right."""
    if drafter.decoding_config.attention != "causal":
        raise ModelError(
            f"{drafter.name} cannot draft: it is no autoregressive model", "use an autoregressive draft model"
        )


def check_texts(way: str, drafter: LanguageModel, target: LanguageModel) -> None:
    """Raises ModelError unless `drafter` can continue the text of `target`, mapped in this `way`."""
    check_causal(drafter)
    for model in (drafter, target):
        if model.tokenizer is None:
            raise ModelError(f"map={way} needs tokenizers, and {model.name} has no tokenizer", "use map=ids")


def check_pair(drafter: LanguageModel, target: LanguageModel) -> None:
    """Raises ModelError unless `drafter` predicts the same tokens as `target`, left to right."""
    check_causal(drafter)
    check_tokens(drafter, target)


def check_tokens(drafter: LanguageModel, target: LanguageModel) -> None:
    """Raises ModelError unless `drafter` has the same tokens as `target`."""
    ours, theirs = (model.tokenizer and model.tokenizer.get_vocab() for model in (target, drafter))
    same = ours == theirs if ours and theirs else target.vocab_size == drafter.vocab_size
    if not same:
        raise ModelError(
            f"{drafter.name} (vocabulary {drafter.vocab_size}) and {target.name} (vocabulary {target.vocab_size}) do "
            "not share their tokens",
            "draft with a checkpoint of the same tokenizer, or with map=text",
        )


def check_device(method: str, name: str) -> None:
    """Raises SpecError unless torch knows the device `name`."""
    try:
        torch.device(name)
    except RuntimeError:
        raise SpecError(
            f"{method}: device={name!r} is no device of torch",
            hint='write device=cpu, or device="cuda:1" with quotes because of the colon',
        ) from None
