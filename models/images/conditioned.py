"""A decoder whose rows start with a condition that is not text: input states before the tokens, twice under guidance.

    logits = u + cfg (c - u),  c with the condition and u without it, for the same tokens

Classifier-Free Diffusion Guidance, https://arxiv.org/abs/2207.12598

Decoding loops see a model like any other: they count each row once, give the condition as many positions as the longer
of a row's two prefixes takes, and feed no token (-1) there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from ..caches.kv_cache import KVCache
from ..errors import CacheError, ModelError
from ..plan import Hidden, Plan, Visible
from ..stack import Stack, WrapperStack


@dataclass(frozen=True, eq=False)
class Prefix:
    """The input states before each row's tokens, for one model."""

    cond: tuple[Tensor, ...]  # per row [P_b, E]
    uncond: tuple[Tensor, ...] | None = None  # per row [U_b, E]: the same without a condition, for guidance

    def take(self, rows: Sequence[int]) -> Prefix:
        """The prefix of these rows only."""
        uncond = None if self.uncond is None else tuple(self.uncond[row] for row in rows)
        return Prefix(tuple(self.cond[row] for row in rows), uncond)

    @property
    def lengths(self) -> list[int]:
        """Positions that each row's condition takes, guided or not."""
        pairs = zip(self.cond, self.uncond or self.cond, strict=True)
        return [max(len(cond), len(uncond)) for cond, uncond in pairs]


class Conditioned(WrapperStack):
    """The stack `base` for the rows of one request."""

    def __init__(
        self,
        base: Stack,
        prefix: Prefix,
        widths: Sequence[int],
        *,
        cfg: float | None = None,
        interval: int | None = None,
    ) -> None:
        """`prefix` holds the conditions; the decoding loop counts `widths` positions for them per row.

        `cfg` None or 1 is the condition alone. With an `interval` i, only the first i + 2 tokens are guided.
        Raises ModelError for conditions that do not fit, and for guidance of a model without unconditional states.
        """
        halves = [prefix.cond]
        self.scale = 1.0 if cfg is None else float(cfg)
        if self.scale != 1:
            if prefix.uncond is None:
                raise ModelError(
                    f"cfg={cfg} needs an unconditional input, which this model does not have", "leave cfg out"
                )
            halves.append(prefix.uncond)
        if any(width < length for width, length in zip(widths, prefix.lengths, strict=True)):
            raise ModelError(
                f"conditions of {max(prefix.lengths)} positions do not fit into {max(widths)} positions",
                "a draft model may not use more positions for a prompt than its target",
            )
        device = base.embedding.device
        self.base = base
        self.widths = torch.tensor(list(widths), device=device)  # [N]
        self.lengths = torch.tensor([[len(states) for states in half] for half in halves], device=device)  # [copies, N]
        rows = pad_sequence([states for half in halves for states in half], batch_first=True).to(device)
        self.rows = rows.view(*self.lengths.shape, *rows.shape[1:])  # [copies, N, P, E]
        if not bool(self.rows.isfinite().all()):
            raise ModelError(
                "the input states of the conditions are not finite",
                "check prompt_embeds, or the weights that embed the condition",
            )
        self.shift = self.lengths - self.widths  # [copies, N], at most 0
        self.even = not bool(self.shift.any())
        self.last = None if interval is None else self.widths + interval  # [N] the last guided query

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache for all rows of the request, with additional rows for the unconditional half."""
        copies, count = self.lengths.shape
        if batch != count:
            raise CacheError(f"the request has {count} rows, and a cache of {batch} rows was requested")
        cache = self.base.new_cache(batch * copies, capacity)
        cache.copies, cache.ids = copies, torch.arange(batch)
        cache.shift = None if self.even else self.shift.flatten()
        return cache

    def put(self, rows: Tensor, other: Conditioned, whom: Tensor) -> None:
        """Copies the conditions of rows `whom` [n] of `other` to `rows` [n] of this request."""
        most = max(self.rows.shape[2], other.rows.shape[2])
        ours, theirs = (pad(each, (0, 0, 0, most - each.shape[2])) for each in (self.rows, other.rows))
        rows, whom = (index.to(ours.device) for index in (rows, whom))
        self.rows = ours.index_copy(1, rows, theirs[:, whom])
        self.lengths = self.lengths.index_copy(1, rows, other.lengths[:, whom])
        self.widths = self.widths.index_copy(0, rows, other.widths[whom])
        self.shift = self.lengths - self.widths
        self.even = not bool(self.shift.any())
        if self.last is not None and other.last is not None:
            self.last = self.last.index_copy(0, rows, other.last[whom])

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        if cache is None:
            raise CacheError("a condition needs a cache, and this forward has none")
        if plan.attention:
            raise ModelError("attention weights are not returned for rows that begin with a condition")
        live = cache.batch // cache.copies
        here = torch.arange(plan.batch, device=plan.tokens.device) if plan.rows is None else plan.rows
        whom = cache.ids.to(here.device)[here]  # [B] rows of the request
        # On a GPU the host does not wait for positions: there the condition is always looked up.
        reaches = plan.tokens.device.type != "cpu" or bool(
            ((plan.positions >= 0) & (plan.positions < self.widths[whom][:, None])).any()
        )
        parts = [self._part(plan, copy, here + copy * live, whom, reaches) for copy in range(cache.copies)]
        plans = _join(parts)
        if plan.rows is None and plan.batch == live:
            plans = replace(plans, rows=None)
        hidden = self.base(plans, cache)
        if cache.copies == 1 and self.even:
            return hidden
        return Shifted(
            plan,
            hidden.states,
            hidden.head,
            hidden.taps,
            hidden.narrowed,
            hidden.norm,
            hidden=hidden,
            shifts=tuple(self.shift[:, whom]),
            scale=self.scale,
            last=None if self.last is None else self.last[whom],
        )

    def _part(self, plan: Plan, copy: int, rows: Tensor, whom: Tensor, reaches: bool) -> Plan:
        """The plan of one copy of its rows."""
        own = plan if self.even else _shift(plan, self.shift[copy, whom])
        lengths, soft = self.lengths[copy, whom], own.soft
        if soft is not None and len(soft) > plan.batch:  # its rows are those of both halves
            soft = soft[copy * plan.batch : (copy + 1) * plan.batch]
        elif soft is None and reaches:
            states = self.rows[copy, whom]  # [B, P, E]
            inside = (own.positions >= 0) & (own.positions < lengths[:, None])
            at = own.positions.clamp(0, states.shape[1] - 1)
            soft = states.gather(1, at[..., None].expand(-1, -1, states.shape[-1])) * inside[..., None]
        return replace(own, soft=soft, rows=rows, origin=lengths)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Shifted(Hidden):
    """A forward of all copies of a plan's rows, whose results are read by row; `states` and `taps` hold every copy."""

    hidden: Hidden
    shifts: Sequence[Tensor]  # per copy [B]
    scale: float = 1.0
    last: Tensor | None = None  # [B] the last query whose logits are guided

    def logits(self, positions: Tensor | None = None, *, subset: bool = False, in_order: bool = False) -> Tensor:
        copied = None if positions is None else self._copied(positions)
        logits = self.hidden.logits(copied, subset=subset).chunk(len(self.shifts))
        if len(logits) == 1:
            return logits[0]
        cond, uncond = logits
        mixed = uncond + self.scale * (cond - uncond)
        if self.last is None:
            return mixed
        return torch.where(self._within(positions)[..., None], mixed, cond)

    def some(self, index: Tensor, positions: Tensor | None = None) -> Tensor:
        copied = None if positions is None else self._copied(positions)
        count = (self.plan.want if positions is None else positions).numel()
        if len(self.shifts) == 1:
            return self.hidden.some(index, copied)
        cond, uncond = self.hidden.some(torch.cat([index, index + count]), copied).chunk(2)
        mixed = uncond + self.scale * (cond - uncond)
        return mixed if self.last is None else torch.where(self._within(positions).flatten()[index, None], mixed, cond)

    def _within(self, positions: Tensor | None) -> Tensor:
        """Whether the logits at `positions` [B, K], by default the plan's `want`, are guided: bool [B, K]."""
        assert self.last is not None, "some are not"
        if positions is None:
            positions = self.plan.positions.gather(1, self.plan.want.clamp(min=0))
        return positions <= self.last[:, None]

    def has(self, positions: Tensor) -> Tensor:
        return self.hidden.has(self._copied(positions)).chunk(len(self.shifts))[0]

    def _copied(self, positions: Tensor) -> Tensor:
        """`positions` [B, K] in the numbering of each copy."""
        return torch.cat([torch.where(positions < 0, -1, positions + by[:, None]) for by in self.shifts])


def copy_cache_rows(stack: Stack, cache: KVCache, rows: Tensor, others: Stack, other: KVCache) -> None:
    """Replaces `rows` [n] of `cache`, of `stack`, by the rows of `other`, a cache of the stack `others`.

    The two stacks are one, or the same one after other conditions.
    """
    cache.put(rows, other)
    if isinstance(stack, Conditioned) and isinstance(others, Conditioned):
        stack.put(cache.ids[rows.cpu()], others, other.ids)
        cache.shift = None if stack.even else stack.shift[:, cache.ids.to(stack.shift.device)].flatten()


def _shift(plan: Plan, by: Tensor) -> Plan:
    """The plan with positions and slots of row b shifted by `by[b]`; slots that become negative are padding."""
    step, visible = by[:, None], plan.visible.from_first_slot()
    positions = torch.where(plan.positions < 0, -1, (plan.positions + step).clamp(min=-1))
    slots = torch.where(plan.slots < 0, -1, (plan.slots + step).clamp(min=-1))
    if visible.base is not None:
        visible = replace(visible, base=visible.base + by)
    elif visible.dense is not None:
        slot = torch.arange(visible.dense.shape[-1], device=by.device) - step  # in the mask's numbering
        known = (slot >= 0) & (slot < visible.dense.shape[-1])
        at = slot.clamp(0, visible.dense.shape[-1] - 1)[:, None].expand_as(visible.dense)
        visible = replace(visible, dense=visible.dense.gather(2, at) & known[:, None])
    lengths = plan.lengths + by
    host: dict[str, Any] = {"uniform": None, "span": None, "stored": None}
    return replace(plan, positions=positions, slots=slots, visible=visible, lengths=lengths, **host)


def _join(parts: list[Plan]) -> Plan:
    """One plan for the rows of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    values_of = {field.name: [getattr(part, field.name) for part in parts] for field in fields(Plan)}
    tensors: dict[str, Any] = {
        name: torch.cat(values) for name, values in values_of.items() if isinstance(values[0], Tensor)
    }
    return replace(parts[0], visible=_attention_pattern(parts), **tensors)


def _attention_pattern(parts: list[Plan]) -> Visible:
    first = parts[0].visible
    if first.parents is not None:
        each = [part.visible.parents.expand(part.batch, -1) for part in parts if part.visible.parents is not None]
        base = [part.visible.base for part in parts if part.visible.base is not None]
        return replace(first, parents=torch.cat(each), base=torch.cat(base))
    if first.dense is not None:
        return replace(first, dense=torch.cat([part.visible.dense for part in parts if part.visible.dense is not None]))
    return first
