"""Plans the memory of a text request: the size of each part, and the largest batch and draft that fit.

SpecMemo: Speculative Decoding is in Your Pocket, https://arxiv.org/abs/2506.01986

    autoregressive: peak = weights + K/V + slots of a draft + drafter + max(work of the prompt's forward, of a round's)
    masked:         peak = weights + K/V + canvas + max(work of a canvas's forward, of its head)

Everything is arithmetic on shapes, and nothing is decoded. Rows are taken to be as long as `prompt` and `new` say, each
with K/V of its own. Work is the temporary tensors of a forward: states of a layer, masks, logits of every node of a
draft, or of every position of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pardec.models.cuda_graphs.runner import GraphRunner, store_size
from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import ModelError, SpecError
from pardec.models.kernels.cpu.library import supported
from pardec.models.kv_stores.cache import stored_bytes
from pardec.models.layers.quantize import weight_bytes
from pardec.models.model import LanguageModel
from pardec.samplers.masked.contracts import MaskedSampler
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.ops.chunked_distribution import CHUNK_BYTES
from pardec.samplers.speculative.cache.stored_cache import StoredKV
from pardec.samplers.speculative.contracts import SpeculativeSampler
from pardec.samplers.traits import Trait

from .api import Model, load

_MOST = 1 << 20  # rows
_FLOAT = 4  # bytes of a logit
_INDEX = 24  # bytes of a query's token, position, slot, and derived values


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of a request. All figures are bytes unless their names say otherwise.

    Attributes:
        parts: weights; kv: the cache of committed tokens; scratch: the cache of other nodes; drafter_weights;
            drafter_kv; graphs, where the model has CUDA graphs: a round's forward, captured; prompt_work and
            round_work: temporary tensors of the two kinds of forward, of which the larger counts. Of round_work,
            `logits` and `taps` (states that a drafter reads) are listed as well. Of a masked model: weights; kv;
            canvas: tokens and scores; graphs; forward_work: the temporary tensors of a layer over the whole canvas;
            head_work: those of the head and the confidence, of which the larger counts, `logits` among them.
        nodes: the nodes of a draft, node 0 included; of a masked model, the positions of a block.
        fits: whether the peak is within the budget; None without one.
        largest_batch: rows that fit; 0 if none does.
        largest_k: depth of drafts that fits `batch` rows, at most the spec's; 0 if none does; None: it drafts no chain.
        largest_tree: drafted tokens of a tree that fit, at most the spec's; None: its shape has no such number.
        least: the peak with drafts of one token, below which there is no speculation.
        speedup: tokens per round over its cost in the target's forwards, for chains of the spec's depth and the given
            acceptance: a lower bound for a tree, whose likeliest path is such a chain.
        speedup_within: the same at `largest_k`, the depth that fits the budget.
        pays_from: the least acceptance probability of a token at which drafting is faster than decoding one by one.
    """

    model: str
    spec: str
    batch: int
    prompt: int
    new: int
    nodes: int
    parts: Mapping[str, int]
    logits: int
    taps: int
    peak: int
    memory: int | None = None
    fits: bool | None = None
    largest_batch: int | None = None
    largest_k: int | None = None
    largest_tree: int | None = None
    least: int | None = None
    speedup: float | None = None
    speedup_within: float | None = None
    pays_from: float | None = None

    def document(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return {**asdict(self), "parts": dict(self.parts)}

    def __str__(self) -> str:
        each = f"blocks of {self.nodes} positions" if "canvas" in self.parts else f"drafts of {self.nodes} nodes"
        lines = [f"{self.spec}, {self.batch} rows of {self.prompt} + {self.new} tokens, {each}"]
        lines += [f"{name.replace('_', ' '):>16}  {size_text(size):>10}" for name, size in self.parts.items() if size]
        lines.append(f"{'peak':>16}  {size_text(self.peak):>10}")
        if "canvas" in self.parts:
            lines.append(f"of the head's work, {size_text(self.logits)} are logits")
        else:
            taps = size_text(self.taps)
            lines.append(f"of a round's work, {size_text(self.logits)} are logits and {taps} states for the drafter")
        if self.memory is not None:
            fits = "fits" if self.fits else "does not fit"
            lines.append(f"it {fits} {size_text(self.memory)}, in which {self.largest_batch} rows would")
        for name, value in (("depth k", self.largest_k), ("tree", self.largest_tree)):
            if value is not None:
                lines.append(f"the largest {name} that fits {self.batch} rows: {value}")
        if self.least is not None:
            lines.append(f"least memory with speculation: {size_text(self.least)}")
        if self.pays_from is not None:
            lines.append(f"drafting saves time if more than {self.pays_from:.0%} of the drafted tokens are accepted")
        if self.speedup is not None:
            rest = "" if self.speedup_within is None else f", {self.speedup_within:.2f} with what fits"
            lines.append(f"at the given acceptance, drafting is at least {self.speedup:.2f} times as fast{rest}")
        return "\n".join(lines)


def plan(
    model: Model | str | Path,
    sampler: Any = None,
    *,
    batch: int = 1,
    prompt: int,
    new: int,
    temperature: float = 0.0,
    memory: int | None = None,
    acceptance: float | None = None,
    **loading: Any,
) -> MemoryPlan:
    """Plans the memory of a request without decoding it; the model and its drafter are loaded.

    Args:
        model: a loaded model, or the first argument of `load`, with its other arguments in `loading`.
        batch: rows. prompt, new: tokens of each.
        memory: a budget in bytes.
        acceptance: how likely a drafted token is accepted, if the ones before it were.

    Raises:
        ModelError: the model is one of images.
        SpecError: an invalid spec or number.

    >>> sizes = plan("tiny-llama", "lookup@int8", batch=2, prompt=64, new=32, device="cpu")
    >>> sizes.peak > sizes.parts["weights"]
    True
    """
    for name, value in (("batch", batch), ("prompt", prompt), ("new", new), ("memory", memory)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise SpecError(f"{name} must be a whole number of at least 1, got {value!r}")
    if acceptance is not None and not 0 <= acceptance <= 1:
        raise SpecError(f"acceptance must be a probability, got {acceptance!r}")
    loaded = model if isinstance(model, Model) else load(model, **loading)
    if loaded.family not in ("ar", "masked") or loaded.imaging is not None:
        raise ModelError(
            f"{loaded.name} makes images: only memory of text models is planned", "plan for one such as tiny-llama"
        )
    call = loaded.prepare(
        input_ids=[[0] * prompt], sampler=sampler, max_new_tokens=new, temperature=temperature, stop_ids=[]
    )
    sizes = _Sizes(loaded.language_model, call.request, prompt, new)
    if loaded.family == "masked":
        if acceptance is not None:
            raise SpecError(
                f"acceptance={acceptance} is the acceptance rate of drafts, and {loaded.name} drafts nothing",
                "leave it out",
            )
        sizes = _MaskedSizes(loaded.language_model, call.request, prompt, new, call.sampler)
    return _planned(sizes, call.sampler, batch, memory, acceptance)


def _no_memory(device: torch.device) -> AbstractContextManager[Any]:
    """Tensors made in this context take no memory of a GPU; on a CPU they take none before they are written."""
    if device.type == "cpu":
        return nullcontext()
    from torch._subclasses.fake_tensor import FakeTensorMode  # seconds to import

    return FakeTensorMode(allow_non_fake_inputs=True)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of the parts of an autoregressive request."""

    model: LanguageModel
    request: Any
    prompt: int
    new: int

    def parts(self, sampler: Any, batch: int) -> tuple[dict[str, int], int, int, int]:
        """The parts of the peak, the number of nodes of a round, and the bytes of its logits and taps."""
        model, drafter = self.model, self.request.draft_model
        nodes = sampler.width(model)
        queries = sampler.draft.most_queries(nodes, self.request)
        every = nodes + queries
        nodes = min(nodes, getattr(sampler.shape, "nodes", nodes) + 1)  # the others are pruned before the verify pass
        capacity = self.prompt + self.new
        whole, bare = (self._cache(sampler, batch, capacity, slots - 1) for slots in (every, 1))
        parts = {"weights": model.weight_bytes, "kv": bare, "scratch": whole - bare}
        parts |= {"drafter_weights": 0, "drafter_kv": 0}
        if drafter is not None:
            parts["drafter_weights"] = weight_bytes(drafter.parameters() if isinstance(drafter, DraftModule)
                                                    else drafter.decoder.parameters())  # fmt: skip
            stack = drafter.decoder if isinstance(drafter, LanguageModel) else drafter.with_cache
            if stack is not None:
                parts["drafter_kv"] = _plain(stack, batch, capacity + every - 1)
        states = sampler.draft.target_states(self.request) or sampler.draft.target_taps(model)
        width = 0 if states is None else model.width * (len(states.layers) + states.normed)
        taps = batch * (nodes + queries) * width * model.dtype.itemsize
        logits = batch * nodes * model.vocab_size * _FLOAT
        head = 0 if model.dtype == torch.float32 else batch * nodes * model.vocab_size * model.dtype.itemsize
        last = 3 * batch * model.vocab_size * _FLOAT  # logits of the prompts' last tokens: gathered, and sorted
        path = min(nodes, getattr(sampler.draft, "k", nodes) + 1)
        scores = 2 * batch * path * model.vocab_size * _FLOAT  # logits of committed tokens, and their softmax
        sampling = 3 * logits if self.request.temperature else 0
        prompt = self._work(batch, self.prompt, self.prompt, True) + batch * self.prompt * width * model.dtype.itemsize
        round_ = max(
            self._work(batch, nodes + queries, capacity, nodes + queries == 1) + taps,
            logits + max(head, scores, sampling) + taps,
        )
        parts |= {"prompt_work": max(prompt, last), "round_work": round_}
        if isinstance(model.decoder, GraphRunner) and model.decoder.captures(batch * (nodes + queries)):
            # Temporary tensors of captured forwards are in memory of their own, and so are their results.
            results = batch * (nodes + queries) * (model.width + width) * model.dtype.itemsize
            parts["graphs"] = self._work(batch, nodes + queries, capacity, nodes + queries == 1) + taps + results
        return parts, nodes, logits, taps

    def peak(self, sampler: Any, batch: int) -> int:
        parts = self.parts(sampler, batch)[0]
        return _peak(parts)

    def _cache(self, sampler: SpeculativeSampler, batch: int, capacity: int, scratch: int) -> int:
        stage = sampler.cache
        if stage is None:
            return _plain(self.model.decoder, batch, capacity + scratch)
        if not isinstance(stage, StoredKV):  # it alone knows what it keeps: a part of the text, or copies of one
            with _no_memory(self.model.device):
                return batch * stage.new_cache(self.model, 1, capacity, scratch=scratch).nbytes
        like = self.model.decoder.new_cache(1, 1)
        shapes = [(part.shape[2], part.shape[3]) for part in like.k]
        rows, slots = batch, capacity + scratch
        return stored_bytes(stage.store, shapes, like.k[0].dtype, rows=rows, capacity=slots, scratch=scratch)

    def _work(self, batch: int, width: int, extent: int, plain: bool) -> int:
        """Bytes of temporary tensors in the widest layer of a forward of `width` positions per row, `extent` slots."""
        config = getattr(self.model.decoder, "config", None)
        tokens, size, on_cpu = batch * width, self.model.dtype.itemsize, self.model.device.type == "cpu"
        if config is None or not hasattr(config, "mlp_width"):  # a model of transformers: a usual size
            return tokens * 12 * self.model.width * size
        inner = config.mlp_width if config.experts is None else max(config.mlp_width, config.experts.width)
        attention = (3 * config.heads + 2 * config.kv_heads) * config.head_dim
        mask = 0 if plain else batch * width * extent * (2 * size + 1)
        if config.activation != "silu":
            mlp = 3 * config.width + 4 * inner  # gate and up, the activation, the product
        elif on_cpu and not supported():
            mlp = 4 * config.width + 2 * inner  # the product is written over gate and up
        else:
            mlp = 4 * config.width + 3 * inner
        widest = max(mlp, 4 * config.width + attention)
        return int(tokens * (widest * size + _INDEX) + mask)


@dataclass(frozen=True)
class _MaskedSizes(_Sizes):
    """The sizes of the parts of a masked request. A loop of one row says what a row holds before its first forward."""

    sampler: MaskedSampler

    @cached_property
    def row(self) -> tuple[int, int, int, int, int | None]:
        """Of one row: copies, positions, positions of a block, bytes of its canvas, and slots of a cache, if any."""
        _demand_plain(self.sampler, self.model)
        loop = MaskedLoop(self.model, self.sampler, self.request)
        forward, canvas = loop.forward, loop.canvas
        try:
            slots = None if forward.cache is None else forward.cache.capacity
            held = sum(value.nbytes for value in vars(canvas).values() if isinstance(value, Tensor))
            return forward.copies, canvas.length, canvas.window.shape[1], held, slots
        finally:
            loop.close()

    def parts(self, sampler: Any, batch: int) -> tuple[dict[str, int], int, int, int]:
        """The parts of the peak, the positions of a block, the bytes of the logits kept at a time, and 0 for taps."""
        model, (copies, length, block, held, slots) = self.model, self.row
        rows = batch * copies
        kv = 0 if slots is None else _plain(model.decoder, rows, slots)
        of_bits, vocab = model.dtype.itemsize, model.vocab_size
        wanted = length if Trait.FILLS_ROWS in sampler.traits else block
        at_once = min(batch * wanted, max(1, CHUNK_BYTES // (_FLOAT * vocab)))
        logits = at_once * vocab * _FLOAT
        head = copies * (logits + (0 if model.dtype == torch.float32 else at_once * vocab * of_bits))
        states = rows * length * model.width * of_bits
        plain = model.decoding_config.attention == "bidirectional"
        parts = {"weights": model.weight_bytes, "kv": kv, "canvas": batch * held}
        own = 0 if kv else _plain(model.decoder, rows, length) // model.layers  # a layer's K/V, where no cache has them
        parts["forward_work"] = self._work(rows, length, length, plain) + own + logits  # those of the step before
        parts["head_work"] = states + head + (logits if self.request.temperature else 0)
        if isinstance(model.decoder, GraphRunner) and model.decoder.captures(rows * block):
            parts["graphs"] = self._work(rows, block, length, plain) + rows * block * model.width * of_bits + logits
        return parts, block, logits, 0


def _demand_plain(sampler: Any, model: LanguageModel) -> None:
    """Raises SpecError if a stage keeps memory that the plan does not count."""
    traits = sampler.traits
    kept = {
        "attention maps": Trait.READS_ATTENTION in traits,
        "outputs of layers": sampler.cache.layer_reuse(model.layers) is not None,
        "copies of the block": Trait.LEAVE_ONE_OUT in traits,
        "rows of drafts": sampler.branch is not None,
    }
    for what, keeps in kept.items():
        if keeps:
            raise SpecError(
                f"the memory of {sampler.spec} is not planned: it keeps {what}", "plan for it without that stage"
            )


def _planned(sizes: _Sizes, sampler: Any, batch: int, memory: int | None, acceptance: float | None) -> MemoryPlan:
    parts, nodes, logits, taps = sizes.parts(sampler, batch)
    peak, model = _peak(parts), sizes.model
    result = MemoryPlan(
        model.name, str(sampler.spec), batch, sizes.prompt, sizes.new, nodes, parts, logits, taps, peak, memory
    )
    draft, shape = getattr(sampler, "draft", None), getattr(sampler, "shape", None)
    depth = getattr(draft, "k", None)
    if draft is not None and isinstance(depth, int):
        cost = draft.cost_ratio(model, sizes.request.draft_model) or 0.0
        result = replace(
            result,
            least=sizes.peak(_of_depth(sampler, 1), batch),
            pays_from=break_even(depth, cost),
            speedup=None if acceptance is None else speedup(depth, cost, acceptance),
        )
    if memory is None:
        return result
    result = replace(
        result,
        fits=peak <= memory,
        largest_batch=_largest(_MOST, lambda rows: sizes.peak(sampler, rows) <= memory),
    )
    if draft is not None and isinstance(depth, int):
        fitting = _largest(depth, lambda k: sizes.peak(_of_depth(sampler, k), batch) <= memory)
        gain = None if acceptance is None else speedup(fitting, cost, acceptance)
        result = replace(result, largest_k=fitting, speedup_within=gain)
    if shape is not None and isinstance(most := getattr(shape, "nodes", None), int):
        result = replace(
            result,
            largest_tree=_largest(
                most,
                lambda count: sizes.peak(replace(sampler, shape=replace(shape, nodes=count)), batch) <= memory,
            ),
        )
    return result


def speedup(k: int, cost: float, acceptance: float) -> float:
    """Tokens of a round over its time in target forwards, for chains of `k` tokens that cost `cost` forwards each.

        (1 + a + .. + a^k) / (1 + k cost)

    >>> speedup(2, 0.25, 0.5)
    1.1666666666666667
    """
    return float(sum(acceptance**depth for depth in range(k + 1)) / (1 + k * cost))


def break_even(k: int, cost: float) -> float:
    """The acceptance at which drafting `k` tokens is as fast as not drafting; 1 where it never is faster."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if speedup(k, cost, middle) < 1 else (low, middle)
    return high


def _of_depth(sampler: SpeculativeSampler, k: int) -> SpeculativeSampler:
    return replace(sampler, draft=replace(sampler.draft, k=k))  # type: ignore[type-var]


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest count up to `most` that fits; 0 if none does. If a count fits, so does every smaller one."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _plain(stack: Any, batch: int, slots: int) -> int:
    """Bytes of a plain cache with `slots` slots and a scratch slot, in the layers of `stack`."""
    like = stack.new_cache(1, 1)
    if isinstance(stack, GraphRunner):
        batch, slots = store_size(batch, slots)
    return sum(batch * (slots + 1) * prod(part.shape[2:]) * part.dtype.itemsize for part in (*like.k, *like.v))


def _peak(parts: Mapping[str, int]) -> int:
    work = [size for name, size in parts.items() if name.endswith("_work")]
    return sum(parts.values()) - sum(work) + max(work)


def size_text(count: int) -> str:
    """Bytes as text, in the unit with the fewest digits."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
