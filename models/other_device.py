"""A model that runs on another device than the request it takes part in.

Dovetail: A CPU/GPU Heterogeneous Speculative Decoding for LLM Inference, https://arxiv.org/abs/2412.18934

Plans come from the request's device, logits go back there; weights, states, keys and values stay where the model is.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from .caches.kv_cache import KVCache
from .errors import ModelError
from .model import LanguageModel
from .plan import Hidden, Plan, plan_on
from .stack import Stack, WrapperStack


class OtherDevice(WrapperStack):
    """The stack `base`, on the device `own`, for plans on the device `home`."""

    def __init__(self, base: Stack, own: torch.device, home: torch.device) -> None:
        self.base, self.own, self.home = base, own, home

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        hidden, home = self.base(plan_on(plan, self.own), cache), self.home
        subset = hidden.subset
        return replace(
            hidden,
            plan=plan,
            head=lambda states: hidden.head(states).to(home),
            subset=None if subset is None else replace(subset, ids=subset.ids.to(home)),
        )


def for_device(model: LanguageModel, home: torch.device) -> LanguageModel:
    """`model` for requests on `home`; itself if it is there. Raises ModelError for image models."""
    if model.device == home:
        return model
    if model.imaging is not None:
        raise ModelError(f"{model.name} draws images and cannot run on a device of its own", "leave device out")
    stack = OtherDevice(model.decoder, model.device, home)
    return replace(model, decoder=stack, device=home, choice=f"on {model.device} for requests on {home}")
