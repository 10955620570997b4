"""`tune`: the cheapest sampler that keeps the quality asked for, found by search and confirmed on fresh problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...executors import executor as leads
from ...requests.early import check_folder
from ...tasks import Task
from ...tasks.scorers import Score
from .. import sources
from ..entries import SamplerLike
from ..runner import environment
from . import advice
from .advice import Advice
from .bench import Baseline, Bench
from .confirming import Stand
from .fit import Fit
from .halving import Outcome, search
from .prepared import BASELINE, BUDGET, COSTS, Search, outline, prepare
from .space import Candidate

if TYPE_CHECKING:
    from ...api import Model

__all__ = ["BUDGET", "COSTS", "Advice", "preview", "tune"]

_LOADING = ("device", "dtype", "device_map", "revision", "offline", "mask_id", "quantize", "cuda_graphs")


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

    Successive halving on tuning problems, then a confirmation of the best on problems that the search never saw: up to
    three candidates, until one "holds". It does where the upper end of the interval of its drop, over pairs of scores
    of the same problems, lies within `max_drop`; with 95% confidence none that loses more is called so. One whose drop
    is within the bound while its interval is not is "within", and the advice names the drop that it may have. The
    baseline is decoded on the first problems of each part and where a candidate is not right; elsewhere it is taken to
    be right, which makes no drop smaller than it is.

    Args:
        model: a loaded model, or the name of one; executors other than "local" need a name.
        task, prompts, scorer: as `compare` takes them; every problem needs a score.
        max_drop: points of accuracy that may be lost against `sequential`.
        budget: decodes of the search, a candidate on a problem each; never more are made.
        confirm: problems of the confirmation; None takes as many as can settle the bound, 100 to 500.
        cost: what is to be small: "nfe" (forwards), "tokens_fed" (positions asked) or "seconds".
        samplers: only these; a part without parameters stands for every value that its method is worth trying with.
        caches: only these, "none" for none. Left out, each is tried with the default, and where the cost feels
            them (a cache saves no forwards) in every setting and with all else.
        block_lengths: each is tried; none leaves blocks as they are by default.
        seed: of the problems, the mixtures tried, and each decode.
        out: a folder with a comparison's folder for each stage, and advice.json; None keeps nothing.
        resume: go on with what is in `out`.
        executor, workers, batch_size: as in `compare`.
        progress: show how far each stage is, as in `compare`; `told` hears a line a stage.
        arguments: those of `generate` that hold for all (max_new_tokens, temperature, ...), and of `load`.

    Raises:
        SpecError: something that cannot be: no score, a budget too small, a sampler unknown.
        PardecError: the baseline itself cannot be decoded.

    >>> some = ["threshold:tau=0.9+eos", "threshold:tau=0.5+eos"]
    >>> advice = tune("tiny-dream", "lists", samplers=some, budget=12, confirm=4, max_new_tokens=8)
    >>> advice.spec in ("threshold+eos", "threshold:tau=0.5+eos")
    True
    """
    check_folder(out, resume)
    asked = Search(max_drop, budget, confirm, cost, samplers, caches, block_lengths, seed)
    loading, tasks = _read(task, prompts, scorer, executor, arguments)
    asked.space(Fit.unread(model, loading, arguments))  # what cannot be is refused before weights are read
    fit = Fit.of(model, loading, arguments)
    plan = prepare(fit, tasks, asked)
    tuning = plan.tuning
    settings = {"seeds": (seed,), "batch_size": batch_size, "executor": executor, "workers": workers}
    settings |= {"resume": resume, "progress": progress, **loading, **arguments}
    named: Model | str = str(model) if executor != "local" and isinstance(model, str | Path) else fit.loaded
    bench = Bench(named, settings, None if out is None else Path(out))
    rungs: list[int] = []

    exact = fit.exact(plan.space.exact, Candidate(BASELINE))
    searching = Baseline(replace(bench, settings={**settings, "warm_up": cost == "seconds"}), exact, tuning)

    def on_tuning(some: Sequence[Candidate], start: int, stop: int) -> dict[Candidate, list[Outcome | None]]:
        rungs.append(stop - start)
        stage, others = f"rung-{len(rungs)}", some[1:]
        if not start:
            return searching.together(stage, others, start, stop)
        rows = searching.bench.measure(stage, others, tuning, start, stop)
        return {exact: searching.beside(f"{stage}-baseline", rows, start, stop), **rows}

    found = search(
        plan.candidates,
        exact,
        on_tuning,
        budget=budget,
        problems=len(tuning.owners),
        max_drop=max_drop,
        cost=cost,
        report=told,
    )
    stand = Stand(Baseline(bench, exact, plan.confirmation), Candidate(plan.space.default), cost, told)
    judged = stand.judge(found.trials[: found.finalists], max_drop)
    made = advice.advice(
        model=fit.name,
        tasks=list(tasks),
        arguments=arguments,
        max_drop=max_drop,
        budget=budget,
        search=found,
        judged=judged,
        environment=environment(),
    )
    if out is not None and leads(executor, workers=workers).leads:
        made.to_json(Path(out) / "advice.json")
    return made


def preview(
    model: Model | str | Path,
    task: str | Task | Sequence[str | Task] | None = None,
    *,
    prompts: sources.Prompts | None = None,
    scorer: str | Score | None = None,
    out: str | Path | None = None,
    executor: str = "local",
    **arguments: Any,
) -> dict[str, Any]:
    """What `tune` with these arguments would try, as plain values; nothing is decoded, loaded or written.

    Raises SpecError for what `tune` would refuse before weights are read.
    """
    asked = Search(**{field.name: arguments.pop(field.name) for field in fields(Search) if field.name in arguments})
    loading, tasks = _read(task, prompts, scorer, executor, arguments)
    fit = Fit.unread(model, loading, arguments)
    return outline(fit, prepare(fit, tasks, asked), tasks, asked, None if out is None else Path(out))


def _read(
    task: str | Task | Sequence[str | Task] | None,
    prompts: sources.Prompts | None,
    scorer: str | Score | None,
    executor: str,
    arguments: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Task]]:
    """How the model is loaded, taken out of the arguments; and the tasks."""
    sources.refuse_unnamed(scorer, executor)
    loading = {name: arguments.pop(name) for name in _LOADING if name in arguments}
    return loading, sources.tasks(task, prompts, scorer)
