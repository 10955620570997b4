"""Times whole decodes: where a step's time goes, the floor beside it, other loops in turn, memory.

With a cache that keeps K and V, what a masked decode's arithmetic predicts stands beside it too:

    predicted = seconds of an uncached step * operations of all forwards and heads / operations of that step

The uncached step is the first of the same request without a cache, made in turn with the whole decodes; operations are
the floor's. `over_predicted` is the decode's time over what is predicted, by the median of the pairs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import cycle, islice, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pardec
from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.cuda_graphs.runner import GraphRunner, native
from pardec.models.errors import PardecError
from pardec.models.model import LanguageModel
from pardec.samplers.events import Finished
from pardec.samplers.masked.contracts import MaskedSampler

from ..comparison.memory import Peak
from ..requests.continuous import VectorCall
from ..requests.images import with_defaults
from ..requests.text import Call
from .clock import timed
from .floor import Rates, floor, rates
from .parts import PARTS, Fed, Split, split, uncached
from .rivals import Rivals, rivals

_READING = 1e-5  # seconds that reading the clock takes at most, with what it evicts from the caches
QUESTION = "Tom has 12 apples. He buys 7 more. How many apples does Tom have now?"
CAPTION = "a small red circle left of a large blue square on black"
DEFAULTS = {"masked": ("sequential", "sequential@dual"), "ar": ("sequential",), "continuous": ("mar",)}


class Differs(PardecError, RuntimeError):
    """Two loops that should give the same tokens do not."""


def bench(
    model: pardec.Model,
    specs: Sequence[str] = (),
    *,
    batches: Sequence[int] = (1, 8),
    contexts: Sequence[int] = (0,),
    new: Sequence[int] = (64,),
    prompts: Sequence[Any] = (),
    block_length: int | None = None,
    distribution: Mapping[str, Any] | None = None,
    pairs: int = 5,
    beside: bool = True,
) -> Iterator[dict[str, Any]]:
    """A row for each spec, batch, context and length, as soon as it is there; times in seconds, memory in bytes.

    Args:
        specs: samplers; those of `DEFAULTS` where there are none.
        contexts: tokens before the first new one; 0 is a question, or one token where there is no tokenizer.
        new: tokens to fill; of images, which have as many tokens as they have, neither is looked at.
        prompts: in place of contexts: the rows of a batch are the first ones of these, from the start again where they
            are too few, and each ends at its end token as it does in `generate`.
        distribution: `temperature`, `top_k`, `top_p` of `generate`; other loops then draw other tokens and are
            not timed beside.
        pairs: how often each loop is timed, all in turn; one more time comes before, and is not counted.
        beside: time other people's loops too, where there are any.

    Raises:
        SpecError: a request that cannot work.
        Differs: another loop gave other tokens.
    """
    network = model.network
    images = model.imaging is not None
    measured = rates(network.device, network.dtype, _weight_bytes(model))
    lengths = [(0, 0)] if images else list(product((0,) if prompts else contexts, new))
    for spec, (context, count), batch in product(specs or DEFAULTS[model.family], lengths, batches):
        call = prepared(model, spec, batch, context, count, block_length, prompts, **distribution or {})
        found = Rivals()
        if beside and isinstance(call, Call) and isinstance(network, LanguageModel):
            found = rivals(replace(network, decoder=native(network.decoder) or network.decoder), call)
        yield {"model": model.name, "parameters": network.parameters, **_measure(model, call, found, pairs, measured)}


def prepared(
    model: pardec.Model,
    spec: str,
    batch: int,
    context: int,
    new: int,
    block_length: int | None,
    prompts: Sequence[Any] = (),
    **distribution: Any,
) -> Call | VectorCall:
    """The request that is timed: equal rows that never stop early, or rows of `prompts`, that do.

    Images are those of a caption, or of the first classes, drawn as the checkpoint's authors draw.
    """
    if model.imaging is not None:
        settings = with_defaults(model.imaging, {"sampler": spec, **distribution})
        if model.imaging.kind == "class":
            return model.prepare(label=[row % model.imaging.classes for row in range(batch)], **settings)
        return model.prepare(list(islice(cycle(prompts or [CAPTION]), batch)), **settings)
    settings = {"sampler": spec, "max_new_tokens": new, **distribution}
    if model.family == "masked":
        settings["block_length"] = block_length
    if prompts:
        return model.prepare(list(islice(cycle(prompts), batch)), **settings)
    return model.prepare(input_ids=given(model, context).repeat(batch, 1), stop_ids=[], **settings)


def given(model: pardec.Model, context: int) -> Tensor:
    """The ids [context] of a prompt: a question again and again, or small ids at random where there is no tokenizer."""
    language = model.language_model
    if language.tokenizer is None:
        generator = torch.Generator().manual_seed(context)
        return torch.randint(1, min(language.vocab_size - 1, 1000), (max(context, 1),), generator=generator)
    ids = torch.tensor(language.tokenizer(QUESTION)["input_ids"])
    return ids.repeat(-(-context // len(ids)))[:context] if context else ids


def _weight_bytes(model: pardec.Model) -> int:
    return model.network.parameters * torch.empty((), dtype=model.network.dtype).element_size()


def _measure(
    model: pardec.Model, call: Call | VectorCall, found: Rivals, pairs: int, measured: Rates
) -> dict[str, Any]:
    device = model.network.device
    runs: dict[str, Callable[[], Any]] = {"pardec": lambda: _whole(model, call), **found.runs}
    spent: dict[str, list[float]] = {name: [] for name in runs}
    splits: list[Split] = []
    bare: list[tuple[float, tuple[Fed, ...], int]] = []
    same: dict[str, float] = {}
    peak = Peak(device)
    peak.reset()
    before = peak.read()
    finished = _whole(model, call)
    most = peak.read()
    for pair in range(pairs + 1):
        order = list(runs) if pair % 2 else list(runs)[::-1]
        for name in order:
            made, seconds = timed(runs[name], device)
            if pair:
                spent[name].append(seconds)
            elif name != "pardec":
                same[name] = _same(name, made, finished, call, model.network.dtype)
        splits.append(split(model.network, call))
        if isinstance(call, Call) and _cached(call):
            bare.append(uncached(model.language_model, call))
    one = splits[-1]
    ours = finished.latents if finished.latents is not None else finished.tokens
    if (one.tokens != ours).any():
        raise Differs(f"{call.sampler.spec}: the run with a clock gave other tokens than the one without")
    parts, clock = _parts(splits[1:], spent["pardec"], device)
    step = statistics.median(spent["pardec"]) / one.steps
    tokens = int((np.asarray(finished.trace.lengths) - np.asarray(call.prompts)).sum())
    return {
        "spec": str(call.sampler.spec),
        "batch": len(call.lengths),
        "context": max(call.prompts),
        "new": call.lengths[0] - call.prompts[0],
        "block_length": call.request.block_length if isinstance(call, Call) and model.family == "masked" else None,
        "steps": one.steps,
        "step_s": step,
        "tokens_per_second": tokens / (step * one.steps),
        "split_s": parts,
        "clock_s": clock,
        "decision_and_host": (parts["decision"] + parts["host"]) / sum(parts.values()),
        **_floored(model, one, step, measured),
        **_predicted(model, one, spent["pardec"], bare[1:], measured),
        "tokens_fed": sum(finished.tokens_fed) + finished.padding,
        "forwards": _forwards(model),
        "peak_bytes": None if most is None or before is None else most - before,
        "beside": {name: {"same_rows": same[name], **_against(spent["pardec"], spent[name])} for name in found.runs},
        "left_out": found.left_out,
    }


def _parts(splits: Sequence[Split], whole: Sequence[float], device: torch.device) -> tuple[dict[str, float], float]:
    """Seconds a step of each part, by the median, and of the clock.

    What the shortest run with a clock takes longer than the shortest without, of those that took `whole`, is the
    clock's and no part's, up to 10 microseconds a reading: more than that is the machine's unrest. On a GPU it is not
    known: there the clock keeps the device from working ahead, and what it takes stays in the host's.
    """
    steps, most = splits[0].steps, _READING * splits[0].turns
    parts = {part: statistics.median(each.seconds[part] for each in splits) / steps for part in PARTS}
    if device.type != "cpu":
        return parts, 0.0
    longer = min(sum(each.seconds.values()) for each in splits) - min(whole)
    clock = min(max(longer, 0.0) / steps, most / steps, parts["host"])
    return parts | {"host": parts["host"] - clock}, clock


def _floored(model: pardec.Model, one: Split, step: float, measured: Rates) -> dict[str, Any]:
    """What the floor says of a step; of stacks that are not native, and of vectors, it says nothing."""
    stack = None if isinstance(model.network, ContinuousModel) else native(model.network.decoder)
    if stack is None:
        return {"floor": None, "over_floor": None, "rates": asdict(measured)}
    least = floor(stack, one.fed, one.heads, measured)
    each = {
        "bytes": least.bytes / one.steps,
        "operations": least.operations / one.steps,
        "bytes_s": least.bytes / one.steps / measured.bandwidth,
        "operations_s": least.operations / one.steps / measured.operations,
        "step_s": least.seconds / one.steps,
    }
    return {"floor": each, "over_floor": step / each["step_s"], "rates": asdict(measured)}


def _cached(call: Call) -> bool:
    """Whether a masked decode leaves out of its forwards what a cache keeps."""
    return isinstance(call.sampler, MaskedSampler) and call.sampler.cache.stores


def _predicted(
    model: pardec.Model,
    one: Split,
    spent: Sequence[float],
    bare: Sequence[tuple[float, tuple[Fed, ...], int]],
    measured: Rates,
) -> dict[str, Any]:
    """What uncached steps predict of decodes that took `spent` seconds each; nothing where none was made."""
    stack = native(model.language_model.decoder) if bare else None
    if stack is None:
        return {"uncached_step_s": None, "over_predicted": None}
    _, fed, heads = bare[-1]
    share = floor(stack, one.fed, one.heads, measured).operations / floor(stack, fed, heads, measured).operations
    over = [whole / (step * share) for whole, (step, _, _) in zip(spent, bare, strict=True)]
    return {"uncached_step_s": statistics.median(step[0] for step in bare), "over_predicted": statistics.median(over)}


def _forwards(model: pardec.Model) -> dict[str, int] | None:
    """How the model's forwards have run so far, where they are recorded."""
    stack = None if isinstance(model.network, ContinuousModel) else model.network.decoder
    return dict(stack.counts) if isinstance(stack, GraphRunner) else None


def _whole(model: pardec.Model, call: Call | VectorCall) -> Finished:
    """A decode as `generate` makes it."""
    *_, last = model.run(call, steps=False)
    assert isinstance(last, Finished)
    return last


def _same(name: str, made: Tensor, finished: Finished, call: Call | VectorCall, dtype: torch.dtype) -> float:
    """The share of rows in which another loop gives the same tokens: all, in float32.

    In less, products that are grouped in another way round to other logits, so that near ties may fall otherwise.
    """
    ends = zip(call.prompts, finished.trace.lengths, strict=True)
    rows = zip(finished.tokens, made.cpu().numpy(), ends, strict=True)
    same = [np.array_equal(ours[start:end], theirs[: end - start]) for ours, theirs, (start, end) in rows]
    if dtype == torch.float32 and not all(same):
        raise Differs(f"{call.sampler.spec}: {name} gives other tokens in {same.count(False)} of {len(same)} rows")
    return sum(same) / len(same)


def _against(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Seconds of a whole decode, and how many times as long as pardec's, pair by pair."""
    ratios = sorted(other / own for own, other in zip(ours, theirs, strict=True))
    return {
        "seconds": statistics.median(theirs),
        "pardec_s": statistics.median(ours),
        "speed_up": statistics.median(ratios),
        "speed_up_min": ratios[0],
        "speed_up_max": ratios[-1],
    }
