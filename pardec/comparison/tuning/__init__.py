"""`tune`: searches the cheapest sampler that keeps the required quality, and confirms it on fresh problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError

from ...executors import executor as make_executor
from ...requests import chat_template
from ...requests.preflight import check_folder
from ...requests.settings import MAX_NEW_TOKENS
from ...tasks import Task
from ...tasks.scorers import Score
from .. import sources
from ..entries import SamplerLike
from ..runner import environment
from . import advice
from .advice import Advice
from .bench import Baseline, Bench
from .confirming import Confirmation, least_problems
from .fit import Fit
from .halving import Outcome, search
from .prepared import BUDGET, COSTS, SearchRequest, prepare, summary
from .space import Candidate

if TYPE_CHECKING:
    from ...api import Model

__all__ = ["BUDGET", "COSTS", "Advice", "preview", "tune"]

_LOADING = (
    *("device", "dtype", "device_map", "revision", "offline", "mask_id", "quantize", "cuda_graphs"),
    *("adapter", "packed", "activations"),
)


def tune(
    model: Model | str | Path,
    task: str | Task | Sequence[str | Task] | None = None,
    *,
    max_drop: float = 1.0,
    budget: int = BUDGET,
    confirm: int | None = None,
    cost: str = "nfe",
    samplers: Sequence[SamplerLike] | None = None,
    caches: Sequence[str] | None = None,
    block_lengths: Sequence[int] = (),
    prompts: sources.Prompts | None = None,
    scorer: str | Score | None = None,
    chat: bool | None = None,
    seed: int = 0,
    batch_size: int = 8,
    out: str | Path | None = None,
    resume: bool = False,
    executor: str = "local",
    workers: int | None = None,
    progress: bool | None = False,
    told: Callable[[str], object] = lambda text: None,
    **arguments: Any,
) -> Advice:
    """Searches samplers, parameters and caches for the cheapest that keeps the quality of `sequential`.

    Successive halving on tuning problems, then up to three of the best candidates are tested on fresh problems until
    one "holds": the upper end of the confidence interval of its drop in paired scores is within `max_drop`. With 95%
    confidence no candidate that loses more holds. A candidate whose drop is within the bound but whose interval is not
    is "within", and the advice names the drop that it may have; that takes at least 20 fresh problems (5 where
    `confirm` asks for fewer), without which the verdict is "unsure" and the default is kept. The baseline is decoded
    on the first problems of each stage and where a candidate is wrong; elsewhere it is assumed to be right, which
    never underestimates a drop.

    Args:
        model: a loaded model, or the name of one; executors other than "local" need a name.
        task, prompts, scorer, chat: as in `compare`; every problem needs a score.
        max_drop: points of accuracy that may be lost against `sequential`.
        budget: most decodes of the search, each of one candidate on one problem.
        confirm: problems of the confirmation; None takes enough to decide about the bound, 100 to 500.
        cost: what to minimize: "nfe" (forwards), "tokens_fed" (positions queried) or "seconds".
        samplers: only these; a method without parameters is expanded to its tuning grid.
        caches: only these, "none" for no cache. By default each is tried with the default sampler; if it can change
            the cost (a cache saves no forwards), also in every setting and with all other methods.
        block_lengths: each is tried; if empty, the default.
        seed: of the problems, the combinations of methods tried, and each decode.
        out: a folder with a comparison's folder for each stage, and advice.json; None saves nothing.
        resume: continue the search in `out`.
        executor, workers, batch_size: as in `compare`.
        progress: show the progress of each stage, as in `compare`; `told` is called with one line per stage.
        arguments: of `generate`, for all candidates (max_new_tokens, temperature, ...), and of `load`.

    Raises:
        SpecError: for invalid arguments: problems without a score, a budget too small, an unknown sampler.
        PardecError: the baseline cannot be decoded.

    >>> some = ["threshold:tau=0.9+eos", "threshold:tau=0.5+eos"]
    >>> advice = tune("tiny-dream", "lists", samplers=some, budget=12, confirm=4, max_new_tokens=8)
    >>> advice.spec in ("threshold+eos", "threshold:tau=0.5+eos")
    True
    """
    check_folder(out, resume)
    request = SearchRequest(max_drop, budget, confirm, cost, samplers, caches, block_lengths, seed)
    loading, tasks = _read(task, prompts, scorer, executor, arguments)
    arguments = _with_length(arguments, tasks)
    request.space(Fit.without_weights(model, loading, arguments))  # raises SpecError before weights are read
    fit = Fit.of(model, loading, arguments)
    plan = prepare(fit, tasks, request)
    tuning = plan.tuning
    settings = {"seeds": (seed,), "batch_size": batch_size, "executor": executor, "workers": workers}
    settings |= {"resume": resume, "progress": progress, "chat": chat, **loading, **arguments}
    if chat_template.worth_saying(fit.loaded, chat):
        told(chat_template.sentence(fit.name, applied=chat_template.applies(fit.loaded, chat)))
    model_name: Model | str = str(model) if executor != "local" and isinstance(model, str | Path) else fit.loaded
    bench = Bench(model_name, settings, None if out is None else Path(out))
    rungs: list[int] = []

    exact = plan.baseline
    baseline = Baseline(replace(bench, settings={**settings, "warm_up": cost == "seconds"}), exact, tuning)

    def on_tuning(group: Sequence[Candidate], start: int, stop: int) -> dict[Candidate, list[Outcome | None]]:
        rungs.append(stop - start)
        stage, candidates = f"rung-{len(rungs)}", group[1:]
        if not start:
            return baseline.decode_together(stage, candidates, start, stop)
        rows = baseline.bench.measure(stage, candidates, tuning, start, stop)
        return {exact: baseline.decode_if_needed(f"{stage}-baseline", rows, start, stop), **rows}

    search_result = search(
        plan.candidates,
        exact,
        on_tuning,
        budget=budget,
        problems=len(tuning.owners),
        max_drop=max_drop,
        cost=cost,
        report=told,
    )
    confirmation = Confirmation(
        Baseline(bench, exact, plan.confirmation),
        Candidate(plan.space.default),
        cost,
        told,
        least=least_problems(confirm),
    )
    judgement = confirmation.judge(search_result.trials[: search_result.finalists], max_drop)
    answer = advice.advice(
        model=fit.name,
        tasks=list(tasks),
        arguments=arguments,
        max_drop=max_drop,
        budget=budget,
        search=search_result,
        judgement=judgement,
        environment=environment(),
    )
    if out is not None and make_executor(executor, workers=workers).leads:
        answer.to_json(Path(out) / "advice.json")
    return answer


def preview(
    model: Model | str | Path,
    task: str | Task | Sequence[str | Task] | None = None,
    *,
    prompts: sources.Prompts | None = None,
    scorer: str | Score | None = None,
    chat: bool | None = None,
    out: str | Path | None = None,
    executor: str = "local",
    **arguments: Any,
) -> dict[str, Any]:
    """The plan of `tune` for these arguments, as plain values; nothing is decoded, loaded or written.

    Raises SpecError for what `tune` would reject before weights are read.
    """
    request = SearchRequest(
        **{field.name: arguments.pop(field.name) for field in fields(SearchRequest) if field.name in arguments}
    )
    loading, tasks = _read(task, prompts, scorer, executor, arguments)
    arguments = _with_length(arguments, tasks)
    fit = Fit.without_weights(model, loading, arguments)
    return summary(fit, prepare(fit, tasks, request), tasks, request, None if out is None else Path(out))


def _with_length(arguments: Mapping[str, Any], tasks: Mapping[str, Task]) -> dict[str, Any]:
    """The arguments of `generate`, with the length of the one task if that is not the default."""
    lengths = {task.tokens for task in tasks.values()} - {MAX_NEW_TOKENS}
    length = {"max_new_tokens": lengths.pop()} if len(lengths) == 1 and len(tasks) == 1 else {}
    return {**length, **arguments}


def _read(
    task: str | Task | Sequence[str | Task] | None,
    prompts: sources.Prompts | None,
    scorer: str | Score | None,
    executor: str,
    arguments: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Task]]:
    """The arguments of `load`, removed from `arguments`, and the tasks."""
    sources.refuse_unnamed(scorer, executor)
    loading = {name: arguments.pop(name) for name in _LOADING if name in arguments}
    tasks = sources.tasks(task, prompts, scorer)
    for each in tasks.values():
        if missing := sources.unanswered(each):
            raise SpecError(
                f"prompt {missing[0]} of {each.name} has no answer, so that it has no score, and tuning needs one",
                hint='give every prompt an "answer", or a scorer of your own that needs none',
            )
    return loading, tasks
