"""Decodes with a spec, and times its rounds on a stated or measured machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible
from pardec.samplers.spec import Part, Spec, parse
from pardec.samplers.speculative.contracts import SpeculativeSampler
from pardec.samplers.traits import Trait

from ..bench.clock import timed
from ..requests.call import Call
from .exits import Exit, ExitRanks, exit_ranks
from .machine import Cost, Link, Machine, PartCosts, Role
from .schedules import SCHEDULES, timeline
from .setting import Round, Setting, rounds
from .timeline import Timeline

if TYPE_CHECKING:
    from ..api import Model
    from ..result import Result

BASELINES = ("sequential", "plain")
KAPPAS = (1, 2, 4, 8)  # columns of the table of early exits


@dataclass(frozen=True)
class Simulation:
    """The times of one schedule for tokens that were really decoded."""

    schedule: str
    spec: str
    timeline: Timeline
    drafted: tuple[tuple[int, ...], ...]  # per row and round
    tokens: int  # after the first one of each row, which the prompt's forward gives
    rounds: int

    @property
    def seconds(self) -> float:
        """Seconds on the machine, without the prompts' forwards."""
        return self.timeline.seconds

    @property
    def tokens_per_second(self) -> float | None:
        """None on a machine where nothing takes time."""
        return self.tokens / self.seconds if self.seconds else None

    def speed_up(self, other: Simulation) -> float | None:
        """Tokens per second divided by the tokens per second of `other`; None if either is unknown."""
        ours, theirs = self.tokens_per_second, other.tokens_per_second
        return ours / theirs if ours and theirs else None


@dataclass(frozen=True)
class Report:
    """A simulated run: the baselines, then the schedules, and the real decodes.

    Attributes:
        result: the real run with the spec.
        machine: the machine on which it was timed.
        setting: the sizes of the models on it.
        simulations: one per schedule, `sequential` and `plain` first.
        rows: per row of `result`, its rounds.
        exits: the ranks of the real tokens in each layer's early exit; None unless `mirror` was one of the schedules.
    """

    result: Result
    machine: Machine
    setting: Setting
    simulations: tuple[Simulation, ...]
    rows: list[list[Round]]
    exits: ExitRanks | None = None

    def of(self, schedule: str) -> Simulation:
        """The simulation of a schedule. Raises KeyError for one that was not requested."""
        return next(each for each in self.simulations if each.schedule == schedule)


def simulate(
    model: Model,
    prompts: Any,
    *,
    sampler: str,
    machine: Machine | str | Path | None = None,
    schedules: Sequence[str] = (),
    exit_layer: int | None = None,
    kappa: int | None = None,
    **arguments: Any,
) -> Report:
    """Decodes `prompts`, and times the rounds of each row, one row after the other.

    Args:
        model: an autoregressive text model.
        sampler: a spec whose drafter is a model or a module or copies text, or that has no drafter.
        machine: a machine, or its file; None measures the costs on this one.
        schedules: names of `SCHEDULES`; by default the one that fits the spec.
        exit_layer: for `mirror`, the layer after which the target's early exit is, counted from 0; by default half.
        kappa: for `mirror`, the candidate tokens of the exit after each node, by default 4.
        arguments: as `generate` takes them.

    Raises:
        SpecError: an unknown schedule, one that does not fit the spec, or a cost that is not stated.

    >>> import pardec
    >>> one = {"here": {"target": {"layer": 1.0}, "draft": {"layer": 0.25}}}
    >>> machine = Machine.of({"roles": {"target": "here", "draft": "here"}, "devices": one})
    >>> report = simulate(pardec.load("tiny-llama", device="cpu"), "Tom has 3 cups.",
    ...                   sampler="model:name=tiny-llama-draft,k=3", machine=machine, max_new_tokens=8)
    >>> report.of("sequential").seconds / report.of("sequential").tokens
    4.0
    """
    if model.family != "ar":
        raise SpecError(
            f"{model.name} is not an autoregressive model, and only those draft and verify",
            hint="name one, such as tiny-llama",
        )
    call = model.prepare(prompts, sampler=sampler, **arguments)
    spec = parse(call.sampler.spec)
    chosen = _schedules(spec, schedules)
    _check(call.sampler, spec, chosen)
    target, draft = model.language_model, call.request.draft_model
    parallel = getattr(call.sampler.draft, "parallel", None) or 1
    if machine is None:
        machine = measured(target, draft, parallel)
    elif not isinstance(machine, Machine):
        machine = Machine.read(machine)
    setting = _setting(machine, target, draft, call, parallel)
    for option, given in (("exit_layer", exit_layer), ("kappa", kappa)):
        if given is not None and "mirror" not in chosen:
            raise SpecError(
                f"{option}={given} has no effect without the schedule mirror",
                hint=f"choose the schedule mirror, or leave {option} out",
            )
    kappa = 4 if kappa is None else kappa
    if "mirror" in chosen:
        exit_layer = _exit_layer(target, exit_layer, kappa)
    result = model.generate(prompts, sampler=sampler, **arguments)
    runs = dict.fromkeys(chosen, result)
    if (unscheduled := _plain(spec)) != spec:
        runs["plain"] = model.generate(prompts, sampler=str(unscheduled), **arguments)
    timed = {name: rounds(run) for name, run in runs.items()}
    ranks = None
    if "mirror" in chosen:
        texts = [result.trace.tokens[row, : result.trace.lengths[row]] for row in range(len(result.tokens))]
        ranks = exit_ranks(target, texts, timed["mirror"])
    simulations = tuple(
        _simulated(name, setting, timed[name], runs[name], None if ranks is None else ranks.at(exit_layer or 0, kappa))
        for name in chosen
    )
    return Report(result, machine, setting, simulations, rounds(result), ranks)


def _simulated(
    name: str, setting: Setting, rows: Sequence[Sequence[Round]], run: Result, exit_hits: Exit | None
) -> Simulation:
    setting = setting if name == "easyspec" else replace(setting, parallel=1)
    clock = timeline(name, setting, rows, exit_hits)
    tokens = sum(each.gained for row in rows for each in row)
    drafted = tuple(tuple(each.depth for each in row) for row in rows)
    return Simulation(name, run.spec, clock, drafted, tokens, tokens if name == "sequential" else sum(map(len, rows)))


def _schedules(spec: Spec, schedules: Sequence[str]) -> list[str]:
    """The baselines, then the requested schedules, or the spec's own."""
    for name in schedules:
        if name not in SCHEDULES:
            raise SpecError(f"unknown schedule {name!r}", hint=f"it is one of {', '.join(SCHEDULES)}")
    first = spec.parts[0]
    grouped = dict(first.params).get("parallel", "none") != "none"
    own = "pearl" if first.name == "pearl" else "easyspec" if grouped else "plain"
    return list(dict.fromkeys((*BASELINES, *(schedules or (own,)))))


def _check(sampler: SpeculativeSampler, spec: Spec, schedules: Sequence[str]) -> None:
    """Raises SpecError for schedules that this drafter cannot have."""
    drafter, name = sampler.draft, spec.parts[0].name
    copies = Trait.COPIES in drafter.provides
    if drafter.needed_model is None and drafter.needed_module is None and not (copies or name == "sequential"):
        raise SpecError(
            f"{name} drafts with the target itself, so that a schedule cannot run the two on different devices",
            hint="draft with model:name=..., a draft module, or copies",
        )
    needs = {"pearl": ("pearl", "pearl:name=...,k=..."), "easyspec": ("model", "model:name=...,parallel=...")}
    for schedule, (wanted, example) in needs.items():
        if schedule in schedules and name != wanted:
            raise SpecError(
                f"the schedule {schedule} needs the drafter {wanted!r}, got {name!r}", hint=f"name it: -s {example}"
            )
    if name == "pearl" and (others := set(schedules) - {*BASELINES, "pearl"}):
        raise SpecError(f"the schedule {min(others)} cannot time the drafter 'pearl'", hint="choose --schedule pearl")


def _setting(
    machine: Machine, target: LanguageModel, draft: LanguageModel | DraftModule | None, call: Call, parallel: int
) -> Setting:
    states = call.sampler.draft.target_states(call.request) if isinstance(draft, DraftModule) else None
    layers = draft.layers if isinstance(draft, LanguageModel) else _module_layers(draft)
    return Setting(
        machine,
        machine.layers.get("target", target.layers),
        machine.layers.get("draft", layers),
        draft_tokens=getattr(call.sampler.draft, "k", 0),
        parallel=parallel,
        state_bytes=0
        if states is None
        else (len(states.layers) + states.normed) * target.width * target.dtype.itemsize,
        draft_state_bytes=draft.width * draft.dtype.itemsize if isinstance(draft, LanguageModel) else 0,
    )


def _module_layers(module: DraftModule | None) -> int:
    """The number of layers in a draft module's forward; 1 for heads alone."""
    return int(getattr(getattr(module, "layers_config", None), "layers", 1))


def _plain(spec: Spec) -> Spec:
    """The same drafter without what a schedule adds."""
    first = spec.parts[0]
    name = "model" if first.name == "pearl" else first.name
    params: Mapping[str, str] = {key: value for key, value in first.params if key != "parallel" or value == "none"}
    return Spec((Part(name, tuple(params.items())), *spec.parts[1:]), spec.cache)


def _exit_layer(target: LanguageModel, layer: int | None, kappa: int) -> int:
    if kappa < 1:
        raise SpecError(f"kappa must be a number of at least 1, got {kappa}", hint="for example kappa=4")
    layer = target.layers // 2 - 1 if layer is None else layer
    if not 0 <= layer < target.layers - 1:
        raise SpecError(
            f"exit_layer must be a layer before the last of {target.layers}, counted from 0, got {layer}",
            hint=f"exit_layer={max(0, target.layers // 2 - 1)}",
        )
    return layer


TOKENS = (1, 2, 4, 8, 16)
_CONTEXT, _REPEATS = 64, 7  # tokens in the cache before a timed forward; timed forwards of each size


def measured(target: LanguageModel, draft: LanguageModel | DraftModule | None, devices: int = 1) -> Machine:
    """A machine with one device `target` and `devices` devices `draft`, without transfer costs.

    Raises SpecError for a drafter whose forwards cannot be timed apart from the target's.
    """
    if isinstance(draft, DraftModule):
        raise SpecError(
            f"{draft.name} runs on states of the target, so that its forwards cannot be measured alone",
            hint="state its costs in a machine file",
        )
    names = tuple(f"draft{number}" for number in range(devices)) if devices > 1 else ("draft",)
    costs: dict[tuple[str, Role], PartCosts] = {("target", "target"): costs_here(target)}
    own = costs["target", "target"] if draft is None else costs_here(draft)
    links = {frozenset((name, other)): Link() for name in names for other in ("target", *names) if name != other}
    return Machine("measured here", "target", names, costs | {(name, "draft"): own for name in names}, links)


@torch.inference_mode()
def costs_here(model: LanguageModel, tokens: Sequence[int] = TOKENS) -> PartCosts:
    """Median seconds of a layer, and of the head, in forwards of one row after a short text."""
    limit = model.max_positions or _CONTEXT + max(tokens)
    context = min(_CONTEXT, limit - max(tokens))
    layers, heads = [], []
    for count in tokens:
        cache = model.new_cache(1, context + count)
        order = torch.arange(context + count, device=model.device)[None]
        text = (order + 1) % model.vocab_size
        model.run(Plan.full(text[:, :context], Visible.causal()), cache)
        plan = Plan(
            tokens=text[:, context:],
            positions=order[:, context:],
            slots=order[:, context:],
            visible=Visible.causal(),
            lengths=torch.full((1,), context + count, device=model.device),
            want=torch.arange(count, device=model.device)[None],
            uniform=context + count,
            span=(context, context + count),
        )
        hidden = model.run(plan, cache)
        hidden.logits()
        run, head = partial(model.run, plan, cache), hidden.logits
        body, last = (median(timed(each, model.device)[1] for _ in range(_REPEATS)) for each in (run, head))
        layers.append((float(count), body / model.layers))
        heads.append((float(count), last))
    return PartCosts(Cost(tuple(layers)), Cost(tuple(heads)))
