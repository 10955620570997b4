"""Draft models: loaded once, cached for later requests, and passed to samplers through the request."""

from __future__ import annotations

from functools import lru_cache

import torch

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.load import load, load_continuous
from pardec.models.model import LanguageModel
from pardec.samplers.continuous.contracts import ContinuousSampler
from pardec.samplers.masked.contracts import MaskedSampler
from pardec.samplers.speculative.contracts import SpeculativeSampler

_CACHE_SIZE = 2  # draft models of a kind that stay loaded


@lru_cache(maxsize=_CACHE_SIZE)
def language_model(name: str, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    """A draft model of text, cached."""
    return load(name, device=device, dtype=dtype)


@lru_cache(maxsize=_CACHE_SIZE)
def continuous_model(name: str, device: torch.device, dtype: torch.dtype) -> ContinuousModel:
    """A draft model with continuous tokens, cached."""
    return load_continuous(name, device=device, dtype=dtype)


def for_text(sampler: MaskedSampler | SpeculativeSampler, target: LanguageModel) -> LanguageModel | None:
    """The checkpoint that the drafter names, on the target's device and in its dtype; None where it names none."""
    name = sampler.draft.needed_model if isinstance(sampler, SpeculativeSampler) else None
    return None if name is None else language_model(name, target.device, target.dtype)


def for_vectors(sampler: ContinuousSampler, target: ContinuousModel) -> ContinuousModel | None:
    """The same for models with continuous tokens."""
    name = sampler.method.needed_model
    return None if name is None else continuous_model(name, target.device, target.dtype)
