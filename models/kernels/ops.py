"""The operations of a decoder layer in one version: PyTorch's definitions, Triton's kernels or those in C.

A forward takes one `Ops` for each device it runs on. `attend` is not among them: which version of it runs depends on
what the queries see, and the `AttentionPattern` of the forward says it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ..caches.kv_cache import Slots
from ..decoder_config import Activation
from .choice import backend
from .cpu.layer import norm_c
from .glu import glu, glu_c
from .norm import norm
from .rotary import rotary_and_cache, rotary_and_cache_c
from .variable import forced


@dataclass(frozen=True, slots=True)
class Ops:
    """Versions of `norm`, `rotary_and_cache` and `glu` that go together; all have the definitions' signatures."""

    norm: Callable[[Tensor, Tensor, float], Tensor]
    rotary_and_cache: Callable[[Tensor, Tensor, Tensor, int, Slots | None, int], tuple[Tensor, Tensor, Tensor]]
    glu: Callable[[Tensor, Activation], Tensor]


REFERENCE = Ops(norm, rotary_and_cache, glu)
C = Ops(norm_c, rotary_and_cache_c, glu_c)


def choose_ops(device: torch.device, dtype: torch.dtype, *, reference: bool = False) -> Ops:
    """The fastest operations for states of `dtype` on `device`, as `backend` chooses; with `reference`, definitions.

    Asked at each forward, since gradients and the dispatch modes that follow operations come and go between two.
    """
    chosen = "reference" if reference else backend(device, dtype)
    if chosen == "reference":
        return REFERENCE
    return C if chosen == "c" else triton_ops(all_of_them=forced() == "triton")


@cache
def triton_ops(*, all_of_them: bool) -> Ops:
    """Triton's; its norm, which is no faster than PyTorch's, only with `all_of_them`."""
    from .glu_triton import glu_triton
    from .norm_triton import norm_triton
    from .rotary_triton import rotary_and_cache_triton

    return Ops(norm_triton if all_of_them else norm, rotary_and_cache_triton, glu_triton)
