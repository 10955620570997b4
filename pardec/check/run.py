"""Runs a check: decodes with the sampler and without, compares, and times both in turn."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import SpecError
from pardec.samplers.cards import find
from pardec.samplers.events import Finished
from pardec.samplers.spec import Part, Spec
from pardec.samplers.traits import Trait

from ..comparison.metrics import bootstrap, by_position, rounds
from ..requests import chat_template
from ..requests.images import with_defaults
from ..result import Result
from ..tasks import task
from . import partings
from .report import LOW, Check, Drafts, first
from .two_sample import ALPHA, two_sample

if TYPE_CHECKING:
    from ..engine import Engine
    from ..requests.call import Call

_SAMPLES = 64  # rows per prompt, if tokens are sampled
_QUESTIONS = 6  # default prompts, of different lengths
_OPEN = ["Tell a story about a boat and a bird.", "The weather is"]  # prompts that have many likely answers
_DAMAGED = 0.25  # below this share of the gain on the drafter's card (on other texts) the drafter counts as damaged
_CAPTION = "a small red circle left of a large blue square on grey"
_CHANGED = ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "logits_processor")
_FILTERS = ("top_k", "top_p", "min_p")
_ROWS = ("prompt", "input_ids", "label")  # arguments of `generate` that give rows
_OWN = ("sampler", "logprobs", "logprob_ids", "callback", "source", "num_return_sequences", "num_images")


def check(
    model: Engine,
    sampler: Any,
    prompts: Sequence[Any] | None = None,
    *,
    expected: float | None = None,
    samples: int | None = None,
    pairs: int = 3,
    **arguments: Any,
) -> Check:
    """See `Model.check`."""
    _refuse(model, arguments, expected=expected, samples=samples, pairs=pairs)
    settings: dict[str, Any] = with_defaults(model.imaging, arguments) if model.imaging is not None else {**arguments}
    sampled = float(settings.get("temperature") or 0) > 0
    if not sampled:  # an image model's usual filters would have no effect
        settings = {name: value for name, value in settings.items() if name in arguments or name not in _FILTERS}
    if samples is not None and not sampled:
        raise SpecError("samples applies to sampled tokens only, and the temperature is 0", hint="temperature=1.0")
    given = _conditions(model, prompts, sampled=sampled)
    call = _prepare(model, given[0], {**settings, "sampler": sampler})
    if getattr(call.sampler, "texts", None) is not None:
        raise SpecError(
            f"{call.sampler.spec} writes several texts per prompt, and plain decoding writes one",
            hint="check a drafter or cache",
        )
    reference = without(call.sampler.spec, model.family)
    promise = str(call.sampler.exact)
    specs = [{**settings, "sampler": spec} for spec in (reference, sampler)]
    faults: list[str] = []
    if sampled:
        checked, found = _sampled(model, given, specs, _SAMPLES if samples is None else samples, promise, faults)
    else:
        checked, found = _greedy(model, given, specs, promise, faults)
    drafts = _drafts(checked, call, expected, greedy=not sampled)
    if drafts is None and expected is not None:
        faults.append(f"nothing was drafted, and {expected:.2f} tokens per round are expected")
    if drafts is not None and drafts.expected is not None:
        at_most, gain = drafts.tokens_per_round[2], drafts.expected - 1
        if at_most < LOW * drafts.expected if expected is not None else at_most - 1 < _DAMAGED * gain:
            faults.append(
                f"the drafter gains {drafts.tokens_per_round[0]:.2f} tokens per round, {drafts.expected:.2f} by "
                f"{drafts.source}: its weights or their quantization are damaged, or it is for another target"
            )
    seconds, speed_up = _timed(model, given, specs, pairs)
    return Check(
        model=model.name,
        spec=str(call.sampler.spec),
        reference=str(reference),
        promise=promise,
        drafts=drafts,
        seconds=seconds,
        speed_up=speed_up,
        faults=faults,
        **found,
    )


def without(spec: Spec, family: str) -> Spec:
    """The sampler to compare with: plain decoding for a drafter; a masked sampler without its cache, if it has one."""
    if family == "ar":
        logits = tuple(part for part in spec.parts if find(part.name, "ar").stage == "logits")
        return Spec((Part("sequential"), *logits))
    if spec.cache is not None and spec.cache.name != "none":
        return Spec(spec.parts, Part("none"))
    ends = tuple(part for part in spec.parts if part.name == "eos")
    return Spec((Part("sequential"), *ends), Part("none"))


def _refuse(
    model: Engine, arguments: Mapping[str, Any], *, expected: float | None, samples: int | None, pairs: int
) -> None:
    if model.family not in ("masked", "ar"):
        raise SpecError(
            f"{model.name} draws {model.driver.drawn}, whose logits cannot be compared",
            hint="check masked and autoregressive models, of text or of image codes",
        )
    if wrong := next((name for name in _CHANGED if arguments.get(name)), None):
        raise SpecError(f"{wrong} changes the logits that check compares", hint=f"leave {wrong} out")
    if wrong := next((name for name in _ROWS if arguments.get(name) is not None), None):
        raise SpecError(
            f"check takes its prompts as prompts=, not {wrong}", hint="prompts takes texts, classes or tensors of ids"
        )
    if wrong := next((name for name in _OWN if name in arguments), None):
        raise SpecError(f"check sets {wrong} itself", hint=f"leave {wrong} out")
    for name, value, least in (("samples", _SAMPLES if samples is None else samples, 8), ("pairs", pairs, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SpecError(f"{name} must be a whole number of at least {least}, got {value!r}", hint=f"{name}={least}")
    if expected is not None and not 1 <= expected < float("inf"):
        raise SpecError(
            f"expected must be a number of tokens per round of at least 1, got {expected!r}",
            hint="for example expected=3.7",
        )


def _conditions(model: Engine, prompts: Sequence[Any] | None, *, sampled: bool) -> list[Any]:
    """The prompts, captions or classes of the rows."""
    if prompts is not None:
        if isinstance(prompts, str) or not len(prompts):
            raise SpecError("prompts is a list of at least one prompt", hint='prompts=["What is a fjord?"]')
        return list(prompts)
    if model.imaging is None and model.tokenizer is None:
        raise SpecError(f"{model.name} comes without a tokenizer", hint="prompts=[torch.tensor([5, 9])] takes ids")
    if model.imaging is not None:
        return [_CAPTION] * 2 if model.imaging.kind != "class" else list(range(min(2, model.imaging.classes)))
    questions = [] if sampled else [str(problem.prompt) for problem in task("arithmetic").problems(n=_QUESTIONS)]
    texts = [*questions, *_OPEN]
    return [chat_template.as_message(text) for text in texts] if chat_template.applies(model, None) else texts


def _rows(model: Engine, given: Sequence[Any]) -> dict[str, Any]:
    """The prompts as arguments of `generate`."""
    if isinstance(given[0], Tensor):
        return {"input_ids": list(given)}
    classes = model.imaging is not None and model.imaging.kind == "class"
    return {"prompt": None, "label": list(given)} if classes else {"prompt": list(given)}


def _prepare(model: Engine, condition: Any, settings: Mapping[str, Any]) -> Call:
    return model.prepare(**_rows(model, [condition]), **settings)


def _decode(model: Engine, given: Sequence[Any], settings: Mapping[str, Any]) -> Result:
    call = model.prepare(**_rows(model, given), **settings)
    started = time.perf_counter()
    *_, end = model.run(call, steps=False)
    assert isinstance(end, Finished), "a loop ends with Finished"
    return model.result(call, end, time.perf_counter() - started, draw=False)


def _greedy(
    model: Engine, given: Sequence[Any], specs: Sequence[dict[str, Any]], promise: str, faults: list[str]
) -> tuple[list[Result], dict[str, Any]]:
    """Decodes all prompts with both samplers, and compares their tokens."""
    network = model.language_model
    top = min(partings.TOP, network.vocab_size)
    plain, checked = (_decode(model, given, {**settings, "logprobs": top}) for settings in specs)
    exact = promise != "relaxed"
    rounding, each = partings.rounding_of(network, plain, checked)
    bound = partings.bound(network, rounding)
    found = [
        place
        for row, furthest in enumerate(each)
        if (place := partings.parting(plain, checked, row, exact=exact, bound=bound, furthest=furthest)) is not None
    ]
    wrong = [place for place in found if place.cause == "fault"]
    if wrong:
        worst = first(wrong)
        faults.append(f"{len(wrong)} of {len(each)} rows part from {specs[0]['sampler']}: {worst.why}")
    elif exact and max(each) > bound:
        faults.append(
            f"logits differ by {max(each):.2g} nats where rounding reaches {bound:.2g}, although the tokens agree: "
            "forwards read other tokens, positions or K/V than plain decoding"
        )
    return [checked], {
        "rows": len(each),
        "equal": len(each) - len(found),
        "partings": found,
        "furthest": max(each),
        "bound": bound,
        "test": None,
    }


def _sampled(
    model: Engine,
    given: Sequence[Any],
    specs: Sequence[dict[str, Any]],
    samples: int,
    promise: str,
    faults: list[str],
) -> tuple[list[Result], dict[str, Any]]:
    """Samples answers to each prompt with both samplers, by different seeds, and compares their distributions."""
    several = "num_return_sequences" if model.imaging is None else "num_images"
    seed = specs[0].get("seed", 0)
    if isinstance(seed, Sequence):
        raise SpecError("check takes one seed where tokens are sampled", hint="seed=0")
    tokens: list[list[list[list[int]]]] = [[], []]
    checked: list[Result] = []
    for number, condition in enumerate(given):
        for which, settings in enumerate(specs):
            own = {**settings, several: samples, "seed": int(seed) + 2 * number + which}
            result = _decode(model, [condition], own)
            tokens[which].append(result.tokens)
            checked += [result] if which else []
    test = two_sample(*tokens)
    if test.p < ALPHA and promise != "relaxed":
        faults.append(f"the sampled distribution differs from that of {specs[0]['sampler']} (p = {test.p:.2g})")
    return checked, {
        "rows": test.rows,
        "equal": None,
        "partings": [],
        "furthest": None,
        "bound": None,
        "test": test,
    }


def _drafts(results: Sequence[Result], call: Call, expected: float | None, *, greedy: bool) -> Drafts | None:
    """The acceptance of drafted tokens; None where nothing was drafted."""
    trace = [
        {
            "error": None,
            "steps": result.step_map[row].tolist(),
            "drafted": result.trace.drafted[row],
            "accepted": result.trace.accepted[row],
            "forced": result.trace.forced[row] if result.trace.forced else None,
        }
        for result in results
        if result.trace.accepted
        for row in range(len(result.tokens))
    ]
    counts = rounds(trace)
    if not any(drafted for drafted, _, _ in counts):
        return None
    gains = [gained for _, _, gained in counts]
    figure, source = (expected, "the caller") if expected is not None else _of_card(call) if greedy else (None, "")
    return Drafts(by_position(trace), (statistics.fmean(gains), *bootstrap(gains)), figure, source)


def _of_card(call: Call) -> tuple[float | None, str]:
    """Tokens per round by the card of the drafter, for chains of the sampler's length, and its name."""
    module = getattr(call.request, "draft_model", None)
    if Trait.TIMES_ROUNDS in call.sampler.traits:  # it leaves drafts out by the clock
        return None, ""
    if not isinstance(module, DraftModule) or not (path := Path(module.path) / "card.json").is_file():
        return None, ""
    figures = json.loads(path.read_text(encoding="utf-8")).get("acceptance")
    if not isinstance(figures, Mapping) or not {"length", "depths"} <= figures.keys():
        return None, ""
    depths = [float(share) for share in figures["depths"]]
    share = (1 + sum(depths[: call.sampler.draft.k])) / (1 + sum(depths))  # the card is of chains of len(depths)
    return float(figures["length"]) * share, f"the card of {module.name}"


def _timed(
    model: Engine, given: Sequence[Any], specs: Sequence[dict[str, Any]], pairs: int
) -> tuple[tuple[float, float], tuple[float, float, float]]:
    """Median seconds of both samplers, which decode in turn, and how many times as fast the second is."""
    seconds: tuple[list[float], list[float]] = [], []
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 else (1, 0):
            seconds[which].append(_decode(model, given, specs[which]).timing.total_s)
    ratios = [plain / own for plain, own in zip(*seconds, strict=True)]
    plain, own = map(statistics.median, seconds)
    return (plain, own), (statistics.median(ratios), min(ratios), max(ratios))
