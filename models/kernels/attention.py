"""Attention of queries at arbitrary positions over slots of a cache, and the pattern of slots that each query sees.

    attend(q, k, v, pattern)[b, i] = sum_s softmax_s(q[b, i] . k[r, s] / sqrt(D)) v[r, s]
    with a sink                      weight_s = exp(score_s) / (1 + sum_s' exp(score_s'))

over the slots s that query i of row b sees, r being the cache row of b. A sink is a further slot that all queries see,
whose key and value are 0 (Attention Is Off By One, https://www.evanmiller.org/attention-is-off-by-one.html).
`attention_pattern` works out once per forward
what a plan's queries see and which version runs; `attend` then runs per layer. The definition is
`scaled_dot_product_attention`: without a mask where everything read is seen, with its causal flag where the pattern is
that, and with an explicit mask elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from ..plan import Plan, Visible
from .choice import Backend, backend
from .cpu.attention import attend_c, kernel
from .variable import forced

if TYPE_CHECKING:
    from torch.nn.attention.bias import CausalBias

_LAST = 256  # the kernel in C takes a mask of at most this many slots at the end of a row


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPattern:
    """The slots that every query of a forward sees, computed once for all layers."""

    backend: Backend
    extent: int  # slots read, from 0
    rows: Tensor | None = None  # [B] cache row of each plan row
    mask: Tensor | CausalBias | None = None  # [B, 1, Q, S] additive
    causal: bool = False
    ends: Tensor | None = None  # [B] int64: slots of each row that the kernel in C reads; `last` then ends there
    last: Tensor | None = None  # [B, Q, M] float32 mask of the last M slots, where all others are seen
    dead: Tensor | None = None  # flat indices into [B * S] (CPU) or bool [B, S, 1, 1]: slots past their row's length
    positions: Tensor | None = None  # this and the following fields are for the Triton version
    lengths: Tensor | None = None
    visible: Visible | None = None
    allowed: Tensor | None = None  # [B, Q, S] bool, for patterns that no rule on positions or parents gives
    nodes: Tensor | None = None  # [B, Q] int64, for tree drafts: the node of each query

    @property
    def in_c(self) -> bool:
        """Whether the kernel in C takes the whole pattern; a causal one runs in chunks of queries."""
        return (self.backend == "c" and not self.causal) or self.last is not None or self.ends is not None

    def narrowed(self, picked: Tensor) -> AttentionPattern:
        """The pattern of the queries `picked` [B, M]."""
        if self.mask is None and self.positions is None and not self.causal:
            return self
        rows = torch.arange(len(picked), device=picked.device)[:, None]
        mask, positions, allowed, nodes = self.mask, self.positions, self.allowed, self.nodes
        last = None if self.last is None else self.last[rows, picked]
        if self.causal or hasattr(mask, "seq_len_q"):  # queries stand at the end of what is read, in order
            slot = torch.arange(self.extent, device=picked.device)
            width = self.extent if self.causal else mask.seq_len_q  # type: ignore[union-attr]
            mask = (slot <= (picked + self.extent - width)[..., None])[:, None]
        elif mask is not None:
            mask = mask[:, 0][rows, picked][:, None]
        if positions is not None:
            positions = positions[rows, picked]
        if allowed is not None:
            allowed = allowed[rows, picked]
        if nodes is not None:
            nodes = nodes[rows, picked]
        backend: Backend = "reference" if self.causal else self.backend
        own = replace(self, backend=backend, mask=mask, causal=False, last=last)
        if self.causal and self.backend == "c":  # the other layers run in C, and so does a batch of unequal rows
            assert isinstance(mask, Tensor)
            hidden = torch.zeros(mask[:, 0].shape).masked_fill_(~mask[:, 0], float("-inf"))
            return _of_row_ends(own, hidden, picked.amax(1) + 1, self.extent)
        return replace(own, positions=positions, allowed=allowed, nodes=nodes)


def attend(
    q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, cap: float | None = None, *, sink: bool = False
) -> Tensor:
    """Attention of q [B, Q, H, D] over k, v [R, >= S, K, D] (cache rows and slots) -> [B, Q, H, D]; K divides H.

    With `cap`, a score s counts as cap * tanh(s / cap); the pattern's version is then the definition. With `sink`, the
    exponentials are divided by one plus their sum; that is no pattern of Triton's version.
    """
    if sink:
        return _with_sink(q, k, v, pattern)
    if cap is None and (pattern.backend != "reference" or pattern.last is not None or pattern.ends is not None):
        out = _attend_by_kernel(q, k, v, pattern)
        if out is not None:
            return out
    if pattern.rows is None and pattern.dead is None:
        if k.shape[1] != pattern.extent:
            k, v = k.narrow(1, 0, pattern.extent), v.narrow(1, 0, pattern.extent)
    else:
        k, v = visible_rows(k, pattern), visible_rows(v, pattern)
    if cap is not None:
        return _capped(q, k, v, pattern, cap)
    q = q.transpose(1, 2)
    batch, heads, queries, dim = q.shape
    # Where all queries see the same slots, heads that share keys are stacked, so that the keys are read once.
    shared = pattern.mask is None and not pattern.causal
    out = F.scaled_dot_product_attention(
        q.reshape(batch, k.shape[2], -1, dim) if shared else q,
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=pattern.mask,
        is_causal=pattern.causal,
        enable_gqa=not shared and heads != k.shape[2],
    )
    return out.reshape(batch, heads, queries, dim).transpose(1, 2)  # a GPU may return other strides


def _attend_by_kernel(q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern) -> Tensor | None:
    """`attend` by the pattern's kernel; None where there is none."""
    if pattern.backend == "triton":
        from .attention_triton import attend_triton

        return attend_triton(q, k, v, pattern)
    if pattern.in_c:
        if kernel() is not None:
            return attend_c(q, read_rows(k, pattern), read_rows(v, pattern), pattern.last, pattern.ends)
    elif pattern.causal and pattern.backend == "c" and kernel() is not None:
        return attend_c(q, read_rows(k, pattern), read_rows(v, pattern), causal=True)
    return None


def _with_sink(q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern) -> Tensor:
    """`attend` with a sink: the kernel's output times its share z / (1 + z), z the sum of the exponentials."""
    if pattern.in_c and kernel() is not None:
        sums = torch.empty(q.shape[:3])
        out = attend_c(q, read_rows(k, pattern), read_rows(v, pattern), pattern.last, pattern.ends, sums)
        return out.mul_(sums.sigmoid_()[..., None].to(out.dtype))
    k, v = (F.pad(visible_rows(each, pattern), (0, 0, 0, 0, 0, 1)) for each in (k, v))
    mask = additive_mask(pattern, q.shape[1], k.shape[1] - 1, q.dtype, q.device)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=None if mask is None else F.pad(mask, (0, 1)),
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)


def _capped(q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, cap: float) -> Tensor:
    """`attend` with capped scores, softmax in float32."""
    q = rearrange(q, "b q (k g) d -> b k g q d", k=k.shape[2])
    scores = torch.einsum("bkgqd,bskd->bkgqs", q, k) / q.shape[-1] ** 0.5
    scores = (scores / cap).tanh() * cap
    mask = additive_mask(pattern, q.shape[3], k.shape[1], q.dtype, q.device)
    if mask is not None:
        scores = scores + mask[:, None]
    weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
    return rearrange(torch.einsum("bkgqs,bskd->bkgqd", weights, v), "b k g q d -> b q (k g) d")


def additive_mask(
    pattern: AttentionPattern, queries: int, slots: int, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """[B or 1, 1, Q, S] 0 where a query sees a slot and -inf elsewhere; None where everything read is seen."""
    mask = pattern.mask
    if pattern.causal or hasattr(mask, "seq_len_q"):  # queries stand at the end of what is read, in order
        whole = torch.full((1, 1, queries, slots), -torch.inf, device=device, dtype=dtype)
        return whole.triu(1 + slots - queries)
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        return torch.zeros(mask.shape, device=device, dtype=dtype).masked_fill_(~mask, -torch.inf)
    return mask


def read_rows(stored: Tensor, pattern: AttentionPattern) -> Tensor:
    """The slots that are read, as rows of the plan."""
    read = stored if stored.shape[1] == pattern.extent else stored[:, : pattern.extent]
    return read if pattern.rows is None else read.index_select(0, pattern.rows)


def visible_rows(stored: Tensor, pattern: AttentionPattern) -> Tensor:
    """The slots that are read, as rows of the plan; slots past a row's length become zero."""
    read = read_rows(stored, pattern)
    if pattern.dead is None:
        return read
    # A masked weight is 0, but 0 * NaN is NaN: the values themselves are set to 0.
    if pattern.dead.dtype == torch.bool:
        return read.masked_fill(pattern.dead, 0)
    read = read.clone(memory_format=torch.contiguous_format) if pattern.rows is None else read
    read.flatten(0, 1).index_fill_(0, pattern.dead, 0)
    return read


def attention_pattern(
    plan: Plan,
    *,
    extent: int,
    dtype: torch.dtype,
    device: torch.device,
    reference: bool = False,
    window: int | None = None,
    fastest: Backend | None = None,
    sink: bool = False,
) -> AttentionPattern:
    """The pattern of the queries of `plan` over the first `extent` slots, with the version of `attend` that runs.

    With `reference`, that is the definition, and with a `sink` it or the kernel in C. `fastest` is the version of the
    forward's operations, where it is known. A `window` hides the slots of positions that far before a query's or more.
    """
    if window is not None and extent <= window:
        window = None  # no slot is that far back
    whole = _sees_all(plan) and window is None
    reference |= sink and fastest == "triton"
    if reference or fastest is None:
        fastest = "reference" if reference else backend(device, dtype)
    in_c = fastest == "c"
    if whole and (fastest != "triton" or forced() != "triton"):
        return AttentionPattern("c" if in_c else "reference", extent, plan.rows)
    # Triton's version is the faster one for patterns in 16 bits; elsewhere only the variable chooses it.
    suited = fastest == "triton" and (dtype != torch.float32 or forced() == "triton")
    chosen: Backend = "triton" if suited else "reference"
    span, uniform = plan.span, plan.uniform
    straight = plan.visible.kind == "causal" and span is not None and uniform == span[1] and window is None
    dense = mask_of_the_last(plan, extent) if in_c and window is None else None
    if dense is not None:
        last = torch.zeros(dense.shape, device=device).masked_fill_(~dense, float("-inf"))
        mask = F.pad(last, (extent - last.shape[-1], 0)).to(dtype)[:, None]
        return AttentionPattern(chosen, extent, mask=mask, last=last)
    if straight and span is not None and chosen == "reference":
        if span[0] == 0:
            own: Backend = "c" if in_c else chosen
            return AttentionPattern(own, extent, plan.rows, causal=True)
        if device.type == "cuda":
            from torch.nn.attention.bias import causal_lower_right  # loads the compiler, which takes seconds

            return AttentionPattern(chosen, extent, plan.rows, mask=causal_lower_right(plan.width, extent))
        if not in_c:  # the mask that `visible_slots` gives, from the numbers that the host knows
            hidden = torch.full((plan.width, extent), -torch.inf, dtype=dtype, device=device).triu_(span[0] + 1)
            return AttentionPattern(chosen, extent, plan.rows, mask=hidden.expand(plan.batch, 1, -1, -1))
    if chosen == "triton":
        tree = plan.visible.parents is not None
        by_rule = tree or plan.visible.kind in ("bidirectional", "causal") or plan.visible.block is not None
        visible = plan.visible
        if window is not None:
            by_rule, visible = False, Visible("mask")
        index = torch.arange(plan.width, device=plan.positions.device)
        return AttentionPattern(
            chosen,
            extent,
            plan.rows,
            positions=plan.positions,
            lengths=plan.lengths,
            visible=visible,
            allowed=None if by_rule else visible_slots(plan, extent, window),
            nodes=index.expand(plan.positions.shape) if tree and by_rule else None,
        )
    allowed = visible_slots(plan, extent, window)
    # A query that sees nothing is padding: it may see anything, as long as its row stays finite.
    allowed |= ~allowed.any(-1, keepdim=True)
    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))
    pattern = AttentionPattern(chosen, extent, plan.rows, mask=mask[:, None], dead=_dead(plan, extent))
    if plan.fixed or not in_c:
        return pattern
    # Causal rows of unequal length run in C at any length: a row is to have the bits that it has alone.
    most = extent if plan.visible.kind == "causal" else _LAST
    return _of_row_ends(pattern, mask, plan.lengths, most)


def _of_row_ends(pattern: AttentionPattern, mask: Tensor, lengths: Tensor, most: int) -> AttentionPattern:
    """The pattern for the C kernel, if queries attend to all but some of the last `most` slots of their rows."""
    order = torch.arange(mask.shape[-1])
    hidden = (mask < 0).any(1) & (order < lengths[:, None])
    count = int((lengths - torch.where(hidden, order, mask.shape[-1]).amin(1)).amax())
    if count > most or not bool((lengths > 0).all()):
        return pattern
    if count <= 0:
        return replace(pattern, ends=lengths.contiguous())
    index = ((lengths - count)[:, None] + torch.arange(count)).clamp(min=0)  # a shorter row's first ones are not read
    last = mask.gather(2, index[:, None].expand(-1, mask.shape[1], -1)).float()
    return replace(pattern, ends=lengths.contiguous(), last=last)


def visible_slots(plan: Plan, extent: int, window: int | None = None) -> Tensor:
    """Which of the first `extent` slots each query sees -> bool [B, Q, S]. The definition of every `Visible`."""
    if window is not None:
        return visible_slots(plan, extent) & _near(plan, extent, window)
    visible, positions = plan.visible, plan.positions
    slot = torch.arange(extent, device=positions.device)
    valid = (slot < plan.lengths[:, None])[:, None]  # [B, 1, S]
    if visible.kind == "bidirectional":
        return valid.expand(-1, plan.width, -1).clone()
    if visible.kind == "causal":
        return valid & (slot <= positions[..., None])
    if visible.kind == "segments" and visible.block is not None:
        block = torch.div(positions, visible.block, rounding_mode="floor")  # padded queries: block -1, see nothing
        return valid & (slot // visible.block <= block[..., None])
    if visible.ids is not None:
        own = visible.ids.gather(1, plan.slots.clamp(min=0))
        after = torch.iinfo(visible.ids.dtype).max  # slots without an id are not seen
        segments = F.pad(visible.ids, (0, extent - visible.ids.shape[1]), value=after)
        return valid & (segments[:, None] <= own[..., None]) & (positions >= 0)[..., None]
    if visible.parents is not None and visible.base is not None:
        return valid & _tree(visible.parents, visible.base, extent) & (positions >= 0)[..., None]
    dense = visible.from_first_slot().dense
    assert dense is not None
    return valid & F.pad(dense, (0, extent - dense.shape[-1]))  # a negative pad cuts


def _near(plan: Plan, extent: int, window: int) -> Tensor:
    """[B, Q, S] bool: the slots whose position is less than `window` before each query's."""
    order = torch.arange(extent, device=plan.positions.device).repeat(plan.batch, 1)  # a slot's position is its number
    if plan.visible.parents is not None:  # but for the nodes of a tree
        inside = (plan.slots >= 0) & (plan.slots < extent)
        order = F.pad(order, (0, 1))
        order = order.scatter(1, torch.where(inside, plan.slots, extent), plan.positions)[:, :extent]
    counted = plan.positions
    if plan.visible.begin is not None:
        counted = counted.minimum(plan.visible.begin[:, None])
    return order[:, None] > counted[..., None] - window


def _sees_all(plan: Plan) -> bool:
    """Whether the host knows that every query sees every slot that is read."""
    if plan.uniform is None:
        return False
    visible = plan.visible
    if visible.kind == "bidirectional":
        return True
    if plan.span is None or plan.span[1] != plan.uniform:
        return False
    if visible.kind == "causal":
        return plan.tokens.shape[1] == 1
    return visible.block is not None and (plan.uniform - 1) // visible.block <= plan.span[0] // visible.block


def mask_of_the_last(plan: Plan, extent: int) -> Tensor | None:
    """[B, Q, M] bool: which of the last M read slots each query sees; all queries see the slots before.

    Of masks, trees and chains that are known to end with what is read and not to begin with it; else None.
    """
    visible, span = plan.visible, plan.slot_span
    if plan.rows is not None or plan.uniform != extent:
        return None
    if visible.dense is not None:
        count = visible.dense.shape[-1]
        return visible.dense if visible.before and visible.before + count == extent and count <= _LAST else None
    if span is None or span[0] == 0 or span[1] != extent:
        return None
    if visible.kind == "causal" and plan.span is not None:
        return torch.ones(plan.width, plan.width, dtype=torch.bool).tril_().expand(plan.batch, -1, -1)
    return None if visible.parents is None else _lineage(visible.parents).expand(plan.batch, -1, -1)


def _dead(plan: Plan, extent: int) -> Tensor | None:
    if plan.uniform is not None:
        return None
    past = torch.arange(extent, device=plan.lengths.device) >= plan.lengths[:, None]
    if past.device.type != "cpu" or plan.fixed:
        return rearrange(past, "b s -> b s 1 1")
    where = past.flatten().nonzero().flatten()
    return where if where.numel() else None


def _tree(parents: Tensor, base: Tensor, extent: int) -> Tensor:
    """Slots below `base` and slots of ancestors, for nodes stored from `base` on -> bool [B, T, S]."""
    nodes = parents.shape[-1]
    rank = torch.arange(extent, device=base.device) - base[:, None]  # [B, S] node stored in each slot
    inside = (rank >= 0) & (rank < nodes)
    rows = _lineage(parents).expand(base.shape[0], nodes, nodes)
    lineage = rows.gather(2, rank.clamp(0, nodes - 1)[:, None].expand(-1, nodes, -1))
    return (rank < 0)[:, None] | (lineage & inside[:, None])


def _lineage(parents: Tensor) -> Tensor:
    """The ancestors of each node of `parents` [T] or [B, T], itself included: bool [T, T] or [B, T, T]."""
    nodes = parents.shape[-1]
    index = torch.arange(nodes, device=parents.device)
    reach = ((parents[..., None] == index) | (index[:, None] == index)).float()
    for _ in range(max(1, (nodes - 1).bit_length())):  # squaring doubles the covered depth
        reach = (reach @ reach).clamp_(max=1)
    return reach.bool()
