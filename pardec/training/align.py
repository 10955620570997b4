"""Continues to train a drafter on requests that it served, outside of serving.

Online Speculative Decoding, https://arxiv.org/abs/2310.07177

    L = mean over the tokens of served answers of D(p || q),  with `wrong_only` over those where argmax q != argmax p

p is the target's distribution and q the drafter's for the same served text. The paper updates while it serves, from the
positions that verification rejected; here rows are read after they were served, every depth of the drafter is compared
at every position, and serving is not slowed. D is any loss of `losses`, by default the paper's, KL(p || q).
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pardec
from pardec.models.errors import SpecError

from .export import read_export
from .run import RATE, Acceptance, Plan, measure, prepare
from .served import served
from .texts import network_of

_GENTLE = 0.1  # share of the learning rate of a full training


@dataclass(frozen=True)
class Alignment:
    """The settings for aligning one drafter."""

    rows: Sequence[Path]  # files of served requests
    out: Path
    overwrite: bool = False  # `out` may be an existing drafter, even the aligned one
    steps: int | None = None  # None: 200, or as many as fit in `minutes`
    minutes: float | None = None
    loss: str = "fkl"
    wrong_only: bool = False  # count only positions where the drafter's likeliest token is not the target's
    rate: float | None = None  # peak learning rate; None: a tenth of a full training's
    batch: int = 3000  # tokens per step
    longest: int = 600  # tokens of a text; prompts are cut at their beginning
    validation: int = 64  # rows that are held out, at most a quarter of them
    drafts: int = 5  # tokens per draft when the drafter is measured
    seed: int = 0


@dataclass(frozen=True)
class Aligned:
    """The outcome, measured on held-out rows."""

    before: Acceptance
    after: Acceptance
    rows: int  # learned from
    validation: int  # held out
    steps: int
    out: Path


def align(model: pardec.Model, drafter: str, how: Alignment, report: Callable[[str], object] | None = None) -> Aligned:
    """Trains `drafter` further from its exported weights, and exports it to `how.out` in the same layout.

    Args:
        model: the target; the drafter learns on its device.
        drafter: an embedded name or a folder as `pardec.training` exports it.
        how: rows, length and loss.
        report: called with each line of the log, by default printed.

    Raises:
        SpecError: rows that cannot be read, too few of them, or a folder that may not be written.
        ModelError: a drafter of another target, or of a kind that cannot be trained.
    """
    target = network_of(model)
    exported = read_export(drafter, target)
    _check_out(how, exported.files.folder)
    files = served(target, how.rows)
    rows = [(prompt, answer) for entries in files.values() for prompt, answer in entries if len(answer) > 1]
    if len({tuple(prompt) for prompt, _ in rows}) < 2:
        raise SpecError(
            "the rows have one prompt, and one is held out for measuring", hint="give rows of two prompts or more"
        )
    how.out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{how.out.name}-", dir=how.out.absolute().parent) as scratch:
        plan = Plan(
            kind=exported.kind,
            name=how.out.name,
            out=how.out,
            state=Path(scratch) / "run",
            loss=how.loss,
            steps=how.steps or (None if how.minutes else 200),
            minutes=how.minutes,
            batch=how.batch,
            rate=how.rate or _GENTLE * RATE[exported.kind],
            seed=how.seed,
            every=math.inf,
            validation=max(1, min(how.validation, len(rows) // 4)),
            drafts=how.drafts,
            init=drafter,
            target_name=model.name,
            target_path=str(exported.files.config.get("base_model_name_or_path") or model.name),
            script="pardec align",
        )
        chosen = {"wrong_only": how.wrong_only, "ramp": (0.0, 0.0), "prompt_share": 0.0, "seed": how.seed}
        longest = min(how.longest, (target.max_positions or how.longest + 1) - 1)
        run = prepare(target, files, plan, chosen, folder=Path(scratch), longest=longest, report=report)
        before = measure(run.network, run.states, run.validation, how.drafts)
        if not before.rounds:
            raise SpecError("no row has an answer of three tokens or more", hint="give rows with longer answers")
        run.train()
    assert run.acceptance is not None, "a run that was not stopped is measured"
    return Aligned(before, run.acceptance, len(run.learning), len(run.validation), run.step, how.out)


def _check_out(how: Alignment, drafter: Path) -> None:
    """Refuses a folder with files unless it is a drafter's folder that may be replaced."""
    if how.out.exists() and not how.out.is_dir():
        raise SpecError(f"{how.out} is a file", hint="name a new folder")
    if not how.out.is_dir() or not any(how.out.iterdir()):
        return
    same = how.out.resolve() == drafter.resolve()
    if not how.overwrite:
        what = "is the drafter itself" if same else "exists"
        raise SpecError(f"out={how.out} {what}", hint="name a new folder, or replace this one with overwrite=True")
    if not same and not (how.out / "card.json").is_file():
        raise SpecError(f"out={how.out} is not the folder of a drafter", hint="name a new folder")
