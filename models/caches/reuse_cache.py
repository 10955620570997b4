"""A cache for layer reuse: a layer computes the queries whose inputs changed most, and reuses the other outputs.

    x  = the input of a layer's attention at a query;  c = cos(P x, P x'), x' the one of the forward before
    of a row that is `similar`, the layer computes the floor(share n) of its n queries with the least c, at least one;
    at the others, its K and V and what it added to the states stay those that it computed last

P has the directions of the largest singular values of the layer's value projection, times these: the distance of P x
and P x' best approximates, in so few numbers, that of the values. The first layer computes all queries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ModelError
from ..host_transfer import upload
from ..kernels.cpu.packed import PackedWeight
from ..kernels.matmul import matmul
from ..plan import Plan
from .kv_cache import KVCache
from .shares import floor_of_share

if TYPE_CHECKING:
    from ..layers.layer import DecoderLayer, LayerPass

_STEPS = 2.0**16  # cosines are rounded to multiples of 1 / _STEPS
_projections: WeakKeyDictionary[DecoderLayer, tuple[tuple[int, int, torch.dtype], Tensor]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class LayerReuse:
    """The share of queries that each layer computes in rows marked `Plan.similar`."""

    shares: tuple[float, ...]  # share of a row's queries, per layer; entry 0 is not used
    rank: int  # number of principal directions that are compared


class ReuseCache(KVCache):
    """K and V, and per slot of each layer but the first, the last projection and the last change that it added."""

    by_row = rewritten = ("projected", "added")  # a row's first forward writes them before they are read

    def __init__(self, plain: KVCache, reuse: LayerReuse, *, width: int, version: int) -> None:
        """Takes the storage of `plain`, for states of this `width` and weights of this `version`."""
        vars(self).update(vars(plain))
        self.reuse, self.width, self.version = reuse, width, version
        self.projected: dict[int, Tensor] = {}  # layer -> [rows, C + 1, R]
        self.added: dict[int, Tensor] = {}  # layer -> [rows, C + 1, E]
        self._counted: tuple[Plan, np.ndarray, np.ndarray] | None = None  # plan, its queries [B], its similar rows [B]

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(tensor.nbytes for store in self._by_layer() for tensor in store.values())

    def grow(self, capacity: int) -> None:
        if capacity <= self.capacity:
            return
        super().grow(capacity)
        with torch.inference_mode(False), torch.no_grad():
            for store in self._by_layer():
                for layer, tensor in store.items():
                    store[layer] = F.pad(tensor, (0, 0, 0, self.capacity + 1 - tensor.shape[1]))

    def through(self, layer: DecoderLayer, h: Tensor, step: LayerPass, index: int) -> Tensor:
        """Runs the layer at `index` on states h [B * Q, E] of stored queries; the first layer computes them all."""
        if index == 0:
            return layer.forward(h, step, index)
        plan, slots = step.plan, step.slots
        assert slots is not None, "a forward with a cache"
        flat = slots.flat.to(h.device)
        projected = matmul(layer.inputs(h, step.ops), self._projection(layer, h.dtype))
        if index not in self.projected:
            for store, size in ((self.projected, projected.shape[1]), (self.added, self.width)):
                with torch.inference_mode(False):
                    store[index] = torch.zeros(self.batch, self.capacity + 1, size, dtype=h.dtype, device=h.device)
        before, added = self.projected[index].flatten(0, 1), self.added[index].flatten(0, 1)
        picked = None
        if plan.similar is not None:
            cosine = F.cosine_similarity(projected.float(), before[flat].float(), dim=-1).view(plan.tokens.shape)
            picked = self._picked_queries(cosine, plan, index)
        before.index_copy_(0, flat, projected)
        if picked is None:
            out = layer.forward(h, step, index)
            added.index_copy_(0, flat, out - h)
            return out
        width = plan.width
        rows = torch.arange(0, len(h), width, device=h.device)[:, None] + picked.clamp(min=0)
        some = h[rows.flatten()]
        out = layer.forward(some, narrowed(step, picked, self), index)
        where = torch.where(picked < 0, len(h), rows).flatten()  # padding goes to an extra row
        whole = F.pad(h + added[flat], (0, 0, 0, 1)).index_copy_(0, where, out)[:-1]
        target = torch.where(picked.flatten() < 0, len(added) - 1, flat[rows.flatten()])  # the last row's scratch slot
        added.index_copy_(0, target, out - some)
        return whole

    def _picked_queries(self, cosine: Tensor, plan: Plan, index: int) -> Tensor | None:
        """[B, M] the queries that a layer computes, in the order of their slots, padded with -1; None: all.

        `cosine` is [B, Q].
        """
        assert plan.similar is not None
        queries = plan.slots >= 0
        if self._counted is None or self._counted[0] is not plan:  # read once per forward
            self._counted = plan, (plan.on_host(plan.slots) >= 0).sum(1), plan.on_host(plan.similar)
        _, every, similar = self._counted
        count = np.minimum(np.maximum(floor_of_share(self.reuse.shares[index], every), 1), every)
        count = np.where(similar, count, every)
        most = int(count.max())
        if most == plan.width:
            return None
        # A matmul's last bits depend on how many rows it has: inputs that have not changed must tie in any batch.
        cosine = (cosine * _STEPS).round().masked_fill(~queries, torch.inf)
        order = cosine.argsort(dim=1, stable=True)[:, :most]
        chosen = upload(np.arange(most) < count[:, None], order.device)
        order = torch.where(chosen, order, plan.width).sort(1).values
        return torch.where(order < plan.width, order, -1)

    def _projection(self, layer: DecoderLayer, dtype: torch.dtype) -> Tensor:
        """The principal projection [R, E] of a layer, computed once for all requests."""
        key = self.version, self.reuse.rank, dtype
        known = _projections.get(layer)
        if known is None or known[0] != key or known[1].device != layer.qkv_weight.device:
            known = _projections[layer] = key, principal(layer, self.reuse.rank, dtype)
        return known[1]

    def _by_layer(self) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        return self.projected, self.added


@torch.inference_mode(False)
@torch.no_grad()
def principal(layer: DecoderLayer, rank: int, dtype: torch.dtype) -> Tensor:
    """[R, E] of `dtype`: S_R V_R^T of the layer's value projection W = U S V^T, made as U_R^T W.

    R is `rank`, or the rows of W where these are fewer. Raises ModelError where weights come only as the layer runs.
    """
    config = layer.config
    weight = layer.qkv_weight
    if weight.is_meta:
        raise ModelError(
            "weights that are on the device only while their layer runs cannot be decomposed",
            "load the model without offloading, or use another cache than spa",
        )
    rows = config.kv_heads * config.head_dim
    if type(weight) is torch.nn.Parameter or isinstance(weight, PackedWeight):
        values = weight[-rows:]
    else:  # quantized: its products with unit vectors
        values = matmul(torch.eye(config.width, device=weight.device, dtype=dtype), weight)[:, -rows:].t()
    if rank >= rows:  # for any U, the cosines equal the values' own
        return values.to(dtype).contiguous()
    dense = values.float()
    # Of W W^T, which is small where heads share keys, the last vectors belong to the largest values.
    vectors = torch.linalg.eigh(dense @ dense.t()).eigenvectors[:, -rank:].flip(1)
    projection: Tensor = (vectors.t() @ dense).to(dtype)
    return projection


def narrowed(step: LayerPass, picked: Tensor, cache: KVCache) -> LayerPass:
    """The `LayerPass` of the queries `picked` [B, M] alone; -1 is padding."""
    inside, at = picked >= 0, picked.clamp(min=0)

    def padded(values: Tensor) -> Tensor:  # [B, Q] -> [B, M]
        return torch.where(inside, values.gather(1, at), -1)

    def rows(values: Tensor) -> Tensor:  # [B or 1, Q, ...] -> [B, M, ...]
        return values[0][at] if len(values) == 1 else values[torch.arange(len(at), device=at.device)[:, None], at]

    plan = replace(
        step.plan,
        tokens=step.plan.tokens.gather(1, at),
        positions=padded(step.plan.positions),
        slots=padded(step.plan.slots),
        soft=None,
        span=None,
        stored=None,
    )
    hooks = step.hooks
    if hooks is not None and hooks.growth is not None:
        hooks = replace(hooks, growth=rows(hooks.growth))
    return replace(
        step,
        plan=plan,
        pattern=step.pattern.narrowed(at),
        slots=cache.slots(plan),
        cos=rows(step.cos),
        sin=rows(step.sin),
        hooks=hooks,
    )
