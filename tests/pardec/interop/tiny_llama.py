"""A tiny Llama, and the outputs of transformers' generate and of pardec in its place."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor

from pardec.interop.transformers import generate
from tests.models.toys import library_model

SHAPE: dict[str, Any] = {"vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPE |= {"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 128}
SHAPE |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IDS = torch.tensor([[5, 6, 7, 5, 6, 7, 5, 6], [9, 4, 9, 4, 9, 4, 9, 4], [11, 3, 8, 20, 11, 3, 8, 20]])


def new(kind: str = "Llama", **more: Any) -> Any:
    """A model of random weights, large enough that it repeats itself."""
    return library_model(getattr(transformers, f"{kind}Config")(**{**SHAPE, **more}), spread=0.2)


@cache
def llama() -> Any:
    return new()


def both(model: Any = None, ids: Tensor = IDS, **arguments: Any) -> tuple[Tensor, Tensor]:
    """The outputs of transformers, and of pardec in its place. Arguments that are functions are called for values."""

    def call(**how: Any) -> Tensor:
        fresh = {name: value() if callable(value) else value for name, value in arguments.items()}
        usual = {"max_new_tokens": 20, "do_sample": False, "attention_mask": torch.ones_like(ids)}
        made: Tensor = (model or llama()).generate(ids, **{**usual, **fresh, **how})
        return made

    return call(), call(custom_generate=generate, sampler="lookup")


def same(model: Any = None, **arguments: Any) -> Tensor:
    expected, made = both(model, **arguments)
    assert torch.equal(made, expected)
    return made
