"""Draft models: loaded once, cached for later requests, and passed to samplers through the request."""

from __future__ import annotations

from functools import lru_cache

import torch

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.draft_modules.contracts import DraftModule, ModuleName
from pardec.models.draft_modules.load import load_draft_module, own_folder
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
    """Loads a draft model of text, or returns the cached one."""
    # "auto" is float32 on a CPU, and lets matrices of a GGUF file stay packed.
    return load(name, device=device, dtype="auto" if device.type == "cpu" and dtype == torch.float32 else dtype)


@lru_cache(maxsize=_CACHE_SIZE)
def trimmed_model(model: LanguageModel, vocabulary: str) -> LanguageModel:
    """Loads a draft model of text whose head is cut to a list of ids, or returns the cached one."""
    return trimmed(model, read_ids(vocabulary, model.path))


@lru_cache(maxsize=_CACHE_SIZE)
def on_device(model: LanguageModel, home: torch.device) -> LanguageModel:
    """A cached draft model for requests on `home`, which keeps the K/V that it stored for earlier ones."""
    return for_device(model, home)


@lru_cache(maxsize=_CACHE_SIZE)
def continuous_model(name: str, device: torch.device, dtype: torch.dtype) -> ContinuousModel:
    """Loads a draft model with continuous tokens, or returns the cached one."""
    return load_continuous(name, device=device, dtype=dtype)


@lru_cache(maxsize=_CACHE_SIZE)
def scale_model(name: str, device: torch.device, dtype: torch.dtype) -> ScaleModel:
    """Loads a model of token maps, or returns the cached one."""
    return load_scales(name, device=device, dtype=dtype)


def draft_module(wanted: ModuleName, target: LanguageModel) -> DraftModule:
    """Loads a draft module for this target, without a name the one in its own files, and keeps it with the target."""
    modules: dict[ModuleName, DraftModule] = target.draft_modules
    if wanted not in modules:
        while len(modules) >= _CACHE_SIZE:
            del modules[next(iter(modules))]
        name = wanted.name or own_folder(target, wanted.kind)
        modules[wanted] = load_draft_module(name, target, kind=wanted.kind, **dict(wanted.options))
    return modules[wanted]


def for_text(sampler: SpeculativeSampler, target: LanguageModel) -> LanguageModel | DraftModule | None:
    """Loads the model that the drafter names, on the target's device and in its dtype; None if it names none."""
    if (wanted := sampler.draft.needed_module) is not None:
        return draft_module(wanted, target)
    name = sampler.draft.needed_model
    if name is None:
        return None
    device = target.device if sampler.draft.device is None else torch.device(sampler.draft.device)
    model, vocabulary = language_model(name, device, target.dtype), sampler.draft.needed_vocabulary
    return on_device(model if vocabulary is None else trimmed_model(model, vocabulary), target.device)


def for_vectors(sampler: ContinuousSampler, target: ContinuousModel) -> ContinuousModel | None:
    """Loads the model that a drafter of continuous tokens names."""
    name = sampler.method.needed_model
    return None if name is None else continuous_model(name, target.device, target.dtype)


def for_scales(sampler: ScaleSampler, target: ScaleModel) -> ScaleModel | None:
    """Loads the model that a sampler of token maps names, which samples the last maps."""
    name = sampler.method.needed_model
    return None if name is None else scale_model(name, target.device, target.dtype)
