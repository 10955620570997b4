"""Draft models: loaded once, cached for later requests, and passed to samplers through the request."""

from __future__ import annotations

from functools import lru_cache

import torch

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.draft_modules.contracts import DraftModule, ModuleName
from pardec.models.draft_modules.load import load_draft_module
from pardec.models.load import load, load_continuous, load_scales
from pardec.models.model import LanguageModel
from pardec.models.other_device import for_device
from pardec.models.scales.contracts import ScaleModel
from pardec.models.trimmed import read_ids, trimmed
from pardec.samplers.continuous.contracts import ContinuousSampler
from pardec.samplers.scales.contracts import ScaleSampler
from pardec.samplers.speculative.contracts import SpeculativeSampler

_CACHE_SIZE = 2  # draft models of a kind that stay loaded


@lru_cache(maxsize=_CACHE_SIZE)
def language_model(name: str, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    """A draft model of text, cached."""
    return load(name, device=device, dtype=dtype)


@lru_cache(maxsize=_CACHE_SIZE)
def trimmed_model(model: LanguageModel, vocabulary: str) -> LanguageModel:
    """A draft model of text whose head is cut to a list of ids, cached."""
    return trimmed(model, read_ids(vocabulary, model.path))


@lru_cache(maxsize=_CACHE_SIZE)
def on_device(model: LanguageModel, home: torch.device) -> LanguageModel:
    """A draft model for requests on `home`, cached, so that it keeps what it has stored of earlier ones."""
    return for_device(model, home)


@lru_cache(maxsize=_CACHE_SIZE)
def continuous_model(name: str, device: torch.device, dtype: torch.dtype) -> ContinuousModel:
    """A draft model with continuous tokens, cached."""
    return load_continuous(name, device=device, dtype=dtype)


@lru_cache(maxsize=_CACHE_SIZE)
def scale_model(name: str, device: torch.device, dtype: torch.dtype) -> ScaleModel:
    """A model of token maps, cached."""
    return load_scales(name, device=device, dtype=dtype)


def draft_module(wanted: ModuleName, target: LanguageModel) -> DraftModule:
    """A draft module bound to this target, kept with it."""
    modules: dict[ModuleName, DraftModule] = target.draft_modules
    if wanted not in modules:
        while len(modules) >= _CACHE_SIZE:
            del modules[next(iter(modules))]
        modules[wanted] = load_draft_module(wanted.name, target, kind=wanted.kind, **dict(wanted.options))
    return modules[wanted]


def for_text(sampler: SpeculativeSampler, target: LanguageModel) -> LanguageModel | DraftModule | None:
    """What the drafter names, on the target's device and in its dtype; None where it names nothing."""
    if (wanted := sampler.draft.needed_module) is not None:
        return draft_module(wanted, target)
    name = sampler.draft.needed_model
    if name is None:
        return None
    device = target.device if sampler.draft.device is None else torch.device(sampler.draft.device)
    model, vocabulary = language_model(name, device, target.dtype), sampler.draft.needed_vocabulary
    return on_device(model if vocabulary is None else trimmed_model(model, vocabulary), target.device)


def for_vectors(sampler: ContinuousSampler, target: ContinuousModel) -> ContinuousModel | None:
    """The same for models with continuous tokens."""
    name = sampler.method.needed_model
    return None if name is None else continuous_model(name, target.device, target.dtype)


def for_scales(sampler: ScaleSampler, target: ScaleModel) -> ScaleModel | None:
    """The same for models of token maps: there it samples the last ones."""
    name = sampler.method.needed_model
    return None if name is None else scale_model(name, target.device, target.dtype)
