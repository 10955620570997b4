"""Sets up a run from a target, texts and a plan, for the training script and `pardec align`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pardec.models.model import LanguageModel

from .export import read_export
from .networks import Options, Target
from .networks.eagle import default_taps
from .networks.kangaroo import Kangaroo, exit_taps
from .run import Plan, Run, state_file
from .states import Row, open_states

# Peak learning rates of a whole training.
RATE = {"eagle": 2e-3, "medusa": 2e-3, "hydra": 2e-3, "dflash": 2e-3, "prompts": 2e-2, "kangaroo": 2e-3, "mtp": 2e-3}


def prepare(
    target: LanguageModel,
    files: Mapping[str, Sequence[Row]],
    plan: Plan,
    chosen: Mapping[str, Any],
    *,
    folder: Path,
    longest: int,
    online: bool = False,
    report: Callable[[str], object] | None = None,
) -> Run:
    """The states of the texts, computed if `folder` lacks them, and the run, resumed if it was stopped.

    Args:
        target: the model that the drafter drafts for.
        files: prompts and answers as ids, by the path of their file, for messages.
        plan: all but the network's options.
        chosen: the named `Options`; the others come from the exported drafter `plan.init`, or are the defaults.
        folder: where states are stored, for every kind of drafter that reads the same layers.
        longest: tokens of a text; prompts are cut at their beginning.
        online: run the target over each batch in place of storing its states.
        report: called with each line of the log, by default printed.

    Raises:
        ModelError: an option contradicts the exported drafter, which may also be of another kind or target.
    """
    exported = plan.init is not None and state_file(plan.init) is None
    options = read_export(plan.init, target, plan.kind).options(chosen) if exported and plan.init else Options(**chosen)
    taps = options.taps or (exit_taps if plan.kind == Kangaroo.kind else default_taps)(target.layers)
    states = open_states(folder, taps, target, online=online)
    states.update(files, longest)
    return Run(Target(target), states, replace(plan, network=replace(options, taps=taps)), report)
