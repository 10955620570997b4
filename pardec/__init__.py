"""pardec decodes diffusion language models and autoregressive models in parallel.

>>> import pardec
>>> model = pardec.load("tiny-dream", device="cpu")
>>> result = model.generate("Tom has 18 cups. He loses 4. He finds 12 cups. How many cups does Tom have now?")
>>> len(result.nfe)
1
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ != "pardec":
    raise ImportError(f"this package imports as 'pardec', not as {__name__!r}")

if not os.path.isdir(os.path.join(os.path.dirname(__file__), "samplers")):
    __path__.append(
        os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    )  # in a checkout, `models` and `samplers` are at the root

from .lazy import submodule
from .version import __version__

if TYPE_CHECKING:
    from pardec.models.errors import CacheError, CapacityError, ModelError, PardecError, SpecError, UnknownNameError
    from pardec.samplers.events import Accepted, Event, Finished, RowFinished, Started, Step
    from pardec.samplers.logprobs import TokenLogprobs
    from pardec.samplers.registry import sampler

    from .api import Model, load
    from .cards import list_models, list_presets, list_samplers
    from .check import Check
    from .choice import Choice
    from .comparison import Table, compare
    from .comparison.tuning import Advice, tune
    from .images.pipeline import ImagePipeline
    from .memory_plan import MemoryPlan, plan
    from .requests.answer_warnings import EmptyAnswer
    from .result import Result
    from .rollouts import Rollouts
    from .tasks import Problem, Task, list_tasks, task

_HOME = {
    "pardec.api": ("Model", "load"),
    "pardec.choice": ("Choice",),
    "pardec.cards": ("list_models", "list_presets", "list_samplers"),
    "pardec.check": ("Check",),
    "pardec.comparison": ("Table", "compare"),
    "pardec.comparison.tuning": ("Advice", "tune"),
    "pardec.requests.answer_warnings": ("EmptyAnswer",),
    "pardec.models.errors": (
        *("CacheError", "CapacityError", "ModelError", "PardecError", "SpecError", "UnknownNameError"),
    ),
    "pardec.images.pipeline": ("ImagePipeline",),
    "pardec.memory_plan": ("MemoryPlan", "plan"),
    "pardec.result": ("Result",),
    "pardec.rollouts": ("Rollouts",),
    "pardec.samplers.events": ("Accepted", "Event", "Finished", "RowFinished", "Started", "Step"),
    "pardec.samplers.logprobs": ("TokenLogprobs",),
    "pardec.samplers.registry": ("sampler",),
    "pardec.tasks": ("Problem", "Task", "list_tasks", "task"),
}
_EARLIER = {"pngs": "pardec.images.pngs", "pictures": "pardec.images"}  # former names of modules
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Accepted", "Advice", "CacheError", "CapacityError", "Check", "Choice", "EmptyAnswer", "Event", "Finished",
    "ImagePipeline", "MemoryPlan", "Model", "ModelError", "PardecError", "Problem", "Result", "Rollouts", "RowFinished",
    "SpecError", "Started", "Step", "Table", "Task", "TokenLogprobs", "UnknownNameError", "__version__", "compare",
    "list_models", "list_presets", "list_samplers", "list_tasks", "load", "plan", "sampler", "task", "tune",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports a name on first use, so that `import pardec` stays light."""
    if name in _EARLIER:
        return import_module(_EARLIER[name])
    if name not in _MODULE:
        return submodule("pardec", name)
    value = getattr(import_module(_MODULE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
