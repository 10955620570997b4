"""Times whole decodes: the parts of a step, its lower bound (the floor), other loops on the same weights, memory.

For a masked decode with a KV cache there is a prediction from its operation counts as well:

    predicted = seconds of an uncached step * operations of all forwards and heads / operations of that step

The uncached step is the first of the same request without a cache, run in turn with the whole decodes; operations are
the floor's. `over_predicted` is the decode's time over the predicted one, the median over the pairs.

The fair bound is the time of the model's own matmuls at the numbers of rows that its forwards have. Two more decodes
are compared bit by bit, and in a third the logits with those of the kernels' definitions (`repeatability`): in 16 bits
tokens depend on near ties, and whether they are the same is only reported.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import cycle, islice, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pardec
from pardec.models.cuda_graphs.runner import native, runner
from pardec.models.errors import ModelError, PardecError
from pardec.models.model import LanguageModel
from pardec.samplers.events import Finished
from pardec.samplers.host_transfer import counted
from pardec.samplers.masked.contracts import MaskedSampler
from pardec.samplers.traits import Trait

from ..memory import Peak
from ..requests import chat_template
from ..requests.call import Call
from ..requests.images import with_defaults
from ..requests.prompts import encode
from .clock import timed
from .fair import FairBound
from .floor import Rates, floor, rates
from .parts import PARTS, TIMED, Fed, Split, split, uncached
from .repeatability import place, repeats, teacher_forced
from .rivals import Rivals, rivals

_READING = 1e-5  # the most seconds that reading the clock takes, including what it evicts from CPU caches
QUESTION = "Tom has 12 apples. He buys 7 more. How many apples does Tom have now?"
CAPTION = "a small red circle left of a large blue square on black"


class Differs(PardecError, RuntimeError):
    """The error for two loops that gave different tokens, although they should give the same."""


def bench(
    model: pardec.Model,
    specs: Sequence[str] = (),
    *,
    batches: Sequence[int] = (1, 8),
    contexts: Sequence[int] = (0,),
    new: Sequence[int] = (64,),
    prompts: Sequence[Any] = (),
    chat: bool | None = None,
    block_length: int | None = None,
    distribution: Mapping[str, Any] | None = None,
    pairs: int = 5,
    beside: bool = True,
) -> Iterator[dict[str, Any]]:
    """Yields one row per spec, batch, context and length when measured; times in seconds, memory in bytes.

    Args:
        specs: samplers; without any the `bench_samplers` of the model's driver.
        contexts: tokens before the first new one; 0 is a question, or one token where there is no tokenizer.
        new: tokens to fill; contexts and new are ignored for images, whose number of tokens is fixed.
        prompts: in place of contexts: the rows of a batch are the first ones of these, from the start again where they
            are too few, and each ends at its end token as it does in `generate`.
        chat: put prompts, and the question, into the chat template, as user messages; None does so if the model has
            one and is not embedded. Contexts of a given length are plain text.
        distribution: `temperature`, `top_k`, `top_p` of `generate`; other loops then sample other tokens and are
            not timed.
        pairs: how often each loop is timed, all in turn, after one run that is not counted.
        beside: also time other projects' loops, where there are any.

    Raises:
        SpecError: a request that cannot work.
        ModelError: a model of token maps.
        Differs: another loop gave other tokens.
    """
    network = model.network
    if model.family not in TIMED:
        raise ModelError(
            f"{model.name} draws {model.driver.drawn}, whose forwards are not timed in parts",
            'Result.timing has the seconds of each part of an image, and "pardec image" prints them',
        )
    images = model.imaging is not None
    measured = rates(network.device, network.dtype, _weight_bytes(model))
    stack = native(network.decoder) if isinstance(network, LanguageModel) else None
    fair = FairBound(stack) if stack is not None else None
    lengths = [(0, 0)] if images else list(product((0,) if prompts else contexts, new))
    applied = chat_template.applies(model, chat)
    if applied:
        prompts = [chat_template.as_message(prompt) for prompt in prompts]
    for spec, (context, count), batch in product(specs or model.driver.bench_samplers, lengths, batches):
        call = prepare(model, spec, batch, context, count, block_length, prompts, chat=applied, **distribution or {})
        others = Rivals()
        if beside and isinstance(network, LanguageModel):
            others = rivals(replace(network, decoder=native(network.decoder) or network.decoder), call)
        row = _measure(model, call, others, pairs, measured, fair)
        yield {"model": model.name, "parameters": network.parameters, **row}


def prepare(
    model: pardec.Model,
    spec: str,
    batch: int,
    context: int,
    new: int,
    block_length: int | None,
    prompts: Sequence[Any] = (),
    *,
    chat: bool = False,
    **distribution: Any,
) -> Call:
    """The request to time: equal rows that never stop early, or rows of `prompts`, which may.

    Images are those of a caption, or of the first classes, with the settings of the checkpoint's authors.
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
    return model.prepare(input_ids=prompt_ids(model, context, chat=chat).repeat(batch, 1), stop_ids=[], **settings)


def prompt_ids(model: pardec.Model, context: int, *, chat: bool = False) -> Tensor:
    """The ids [context] of a prompt: a question, repeated; random small ids where there is no tokenizer.

    A context of 0 is the question itself, with `chat` in the chat template.
    """
    language = model.language_model
    if language.tokenizer is None:
        generator = torch.Generator().manual_seed(context)
        return torch.randint(1, min(language.vocab_size - 1, 1000), (max(context, 1),), generator=generator)
    if chat and not context:
        return encode(language, [chat_template.as_message(QUESTION)], None, None, 1)[0].prompt
    ids = torch.tensor(language.tokenizer(QUESTION)["input_ids"])
    return ids.repeat(-(-context // len(ids)))[:context] if context else ids


def _weight_bytes(model: pardec.Model) -> int:
    if isinstance(model.network, LanguageModel):
        return model.network.weight_bytes
    return model.network.parameters * torch.empty((), dtype=model.network.dtype).element_size()


def _measure(
    model: pardec.Model, call: Call, others: Rivals, pairs: int, measured: Rates, fair: FairBound | None
) -> dict[str, Any]:
    device = model.network.device
    runs: dict[str, Callable[[], Any]] = {"pardec": lambda: _decode(model, call), **others.runs}
    times: dict[str, list[float]] = {name: [] for name in runs}
    splits: list[Split] = []
    uncached_steps = list[tuple[float, tuple[Fed, ...], int]]()
    same: dict[str, float] = {}
    peak = Peak(device)
    peak.reset()
    before = peak.read()
    finished = _decode(model, call)
    after = peak.read()
    crossings: dict[str, int] = {}
    for pair in range(pairs + 1):
        order = list(runs) if pair % 2 else list(runs)[::-1]
        for name in order:
            if name == "pardec" and not pair:  # this run is not timed
                crossings = _crossings(model, call)
                continue
            result, seconds = timed(runs[name], device)
            if pair:
                times[name].append(seconds)
            else:
                same[name] = _same(name, result, finished, call, model.network.dtype)
        splits.append(split(model.network, call))
        if _cached(call) and _whole_layers(model, call):
            uncached_steps.append(uncached(model.language_model, call))
    last = splits[-1]
    ours = finished.latents if finished.latents is not None else finished.tokens
    same_tokens = not (last.tokens != ours).any()
    checks = _checks(model, call)
    if not same_tokens and model.network.dtype == torch.float32:
        where = place(checks["repeats"]) if checks["repeats"] else "where is not known"
        text = "the run that timed its parts gave other tokens than the run without"
        raise Differs(f"{call.sampler.spec}: {text}; two runs compared bit by bit: {where}")
    parts, clock = _parts(splits[1:], times["pardec"], device)
    step = statistics.median(times["pardec"]) / last.steps
    tokens = int((np.asarray(finished.trace.lengths) - np.asarray(call.prompts)).sum())
    return {
        "spec": str(call.sampler.spec),
        "batch": len(call.lengths),
        "context": max(call.prompts),
        "new": call.lengths[0] - call.prompts[0],
        "block_length": call.request.block_length if isinstance(call.sampler, MaskedSampler) else None,
        "steps": last.steps,
        "step_s": step,
        "tokens_per_second": tokens / (step * last.steps),
        "split_s": parts,
        "clock_s": clock,
        "decision_and_host": (parts["decision"] + parts["host"]) / sum(parts.values()),
        **_floor(model, last, step, measured, known=_whole_layers(model, call)),
        **_fair(model, last, step, fair if _whole_layers(model, call) else None),
        "same_tokens": same_tokens,
        **checks,
        **_predict(model, last, times["pardec"], uncached_steps[1:], measured),
        "tokens_fed": sum(finished.tokens_fed) + finished.padding,
        "forwards": _forwards(model),
        "whole_steps": _whole_steps(model),
        "per_step": {name: count / last.steps for name, count in crossings.items()},
        "peak_bytes": None if after is None or before is None else after - before,
        "beside": {name: {"same_rows": same[name], **_compare(times["pardec"], times[name])} for name in others.runs},
        "left_out": others.left_out,
    }


def _parts(splits: Sequence[Split], whole: Sequence[float], device: torch.device) -> tuple[dict[str, float], float]:
    """Median seconds per step of each part, and seconds per step for reading the clock.

    The clock's cost is the time of the shortest run with it minus the least of `whole`, the times without. It is added
    to no part, and limited to 10 microseconds per reading, since more is noise. On a GPU it cannot be measured: there
    the clock keeps the host from running ahead of the device, and its cost stays in the host's part.
    """
    steps, limit = splits[0].steps, _READING * splits[0].readings
    parts = {part: statistics.median(each.seconds[part] for each in splits) / steps for part in PARTS}
    if device.type != "cpu":
        return parts, 0.0
    overhead = min(sum(each.seconds.values()) for each in splits) - min(whole)
    clock = min(max(overhead, 0.0) / steps, limit / steps, parts["host"])
    return parts | {"host": parts["host"] - clock}, clock


def _floor(model: pardec.Model, run: Split, step: float, measured: Rates, *, known: bool) -> dict[str, Any]:
    """The floor of a step; None for stacks that are not native, for continuous tokens, and where it is not `known`."""
    stack = native(model.network.decoder) if known and isinstance(model.network, LanguageModel) else None
    if stack is None:
        return {"floor": None, "over_floor": None, "rates": asdict(measured)}
    whole = floor(stack, run.fed, run.heads, measured)
    each = {
        "bytes": whole.bytes / run.steps,
        "operations": whole.operations / run.steps,
        "bytes_s": whole.bytes / run.steps / measured.bandwidth,
        "operations_s": whole.operations / run.steps / measured.operations,
        "step_s": whole.seconds / run.steps,
    }
    return {"floor": each, "over_floor": step / each["step_s"], "rates": asdict(measured)}


def _fair(model: pardec.Model, run: Split, step: float, fair: FairBound | None) -> dict[str, Any]:
    """The seconds of the model's own matmuls per step; None where they are not known."""
    if fair is None or not fair.known:
        return {"fair_s": None, "over_fair": None}
    seconds = fair.of(run.fed, run.heads) / run.steps
    return {"fair_s": seconds, "over_fair": step / seconds}


def _checks(model: pardec.Model, call: Call) -> dict[str, Any]:
    """Where two runs differ, and how far logits are from the definitions' logits; None if the decoder is not native."""
    network = model.network
    if not isinstance(network, LanguageModel) or native(network.decoder) is None:
        return {"repeats": None, "logits": None}
    return {"repeats": repeats(network, call), "logits": teacher_forced(network, call)}


def _whole_layers(model: pardec.Model, call: Call) -> bool:
    """Whether every layer computes all queries of a forward, so that their number determines its operations."""
    sampler = call.sampler
    return not isinstance(sampler, MaskedSampler) or sampler.cache.layer_reuse(model.language_model.layers) is None


def _cached(call: Call) -> bool:
    """Whether a masked decode's forwards leave out positions that a cache stores."""
    return isinstance(call.sampler, MaskedSampler) and Trait.STORES_KV in call.sampler.traits


def _predict(
    model: pardec.Model,
    run: Split,
    times: Sequence[float],
    uncached_steps: Sequence[tuple[float, tuple[Fed, ...], int]],
    measured: Rates,
) -> dict[str, Any]:
    """The prediction from uncached steps for decodes that took `times` seconds; None if no such step was run."""
    stack = native(model.language_model.decoder) if uncached_steps else None
    if stack is None:
        return {"uncached_step_s": None, "over_predicted": None}
    _, fed, heads = uncached_steps[-1]
    share = floor(stack, run.fed, run.heads, measured).operations / floor(stack, fed, heads, measured).operations
    steps = [seconds for seconds, _, _ in uncached_steps]
    over = [whole / (step * share) for whole, step in zip(times, steps, strict=True)]
    return {"uncached_step_s": statistics.median(steps), "over_predicted": statistics.median(over)}


def _forwards(model: pardec.Model) -> dict[str, int] | None:
    """How the model's forwards have run so far, if they are CUDA graphs."""
    network = model.network
    graphs = runner(network.decoder) if isinstance(network, LanguageModel) else network.graphs
    return None if graphs is None else dict(graphs.counts)


def _whole_steps(model: pardec.Model) -> dict[str, int] | None:
    """How the loops' whole steps have run so far, if its forwards are CUDA graphs and steps can be."""
    graphs = runner(model.network.decoder) if isinstance(model.network, LanguageModel) else None
    return dict(graphs.step_counts) if graphs is not None and graphs.step_counts else None


def _crossings(model: pardec.Model, call: Call) -> dict[str, int]:
    """Transfers between host and device of one decode, and its graph replays."""
    before = _replays(model)
    with counted() as transfers:
        _decode(model, call)
    return {**asdict(transfers), "replays": _replays(model) - before}


def _replays(model: pardec.Model) -> int:
    ran = Counter(_forwards(model) or {}) + Counter(_whole_steps(model) or {})
    return ran["replayed"] + ran["recorded"]


def _decode(model: pardec.Model, call: Call) -> Finished:
    """Decodes as `generate` does."""
    *_, last = model.run(call, steps=False)
    assert isinstance(last, Finished)
    return last


def _same(name: str, tokens: Tensor, finished: Finished, call: Call, dtype: torch.dtype) -> float:
    """The share of rows in which another loop gives the same tokens. Raises Differs in float32 unless all do.

    In a lower precision, matmuls of other shapes round to other logits, and near ties may be decided otherwise.
    """
    ends = zip(call.prompts, finished.trace.lengths, strict=True)
    rows = zip(finished.tokens, tokens.cpu().numpy(), ends, strict=True)
    same = [np.array_equal(ours[start:end], theirs[: end - start]) for ours, theirs, (start, end) in rows]
    if dtype == torch.float32 and not all(same):
        raise Differs(f"{call.sampler.spec}: {name} gives other tokens in {same.count(False)} of {len(same)} rows")
    return sum(same) / len(same)


def _compare(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Median seconds of a whole decode, and its time divided by pardec's, over the pairs."""
    ratios = sorted(other / own for own, other in zip(ours, theirs, strict=True))
    return {
        "seconds": statistics.median(theirs),
        "pardec_s": statistics.median(ours),
        "speed_up": statistics.median(ratios),
        "speed_up_min": ratios[0],
        "speed_up_max": ratios[-1],
    }
