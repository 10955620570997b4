"""Samples the token maps of an image one after the other, coarse to fine, each from all before it.

Visual Autoregressive Modeling: Scalable Image Generation via Next-Scale Prediction, https://arxiv.org/abs/2404.02905

    map s: every code from softmax((1 + t) l_c - t l_u), independently;  t = cfg s / (S - 1), l of the maps before s

Filters come before the temperature: top-k, then top-p, then the division, so that what they keep does not depend on it.
This is the authors' order of CoDe, https://arxiv.org/abs/2411.17787; VAR itself has no temperature. Other samplers of
pardec divide first, as `order=temperature` does here.

Deviates from the authors' code: the unconditioned half, whose logits count for nothing at the first scale, gives none
there, and without guidance, or for a row without a class, there is no such half.
Exact: distribution: the baseline of the family.
"""

from __future__ import annotations

from typing import Annotated

from ...registry import register
from .map_decoding import MapMethod, Order


@register("sequential", exact="distribution", checked="golden/var joint")
class Sequential(MapMethod):
    temperatures: Annotated[
        str | None, "factor of the temperature per scale: 1.1x7/1 is 1.1 at the first seven, then 1"
    ] = None
    top_ks: Annotated[str | None, "top-k per scale, as 900x7/600; 0 keeps all; none: the request's"] = None
    cfgs: Annotated[str | None, "factor of cfg per scale, as 1x7/0.75"] = None
    order: Annotated[Order, "apply first: filters, as published, or temperature, as other samplers do"] = "filters"
