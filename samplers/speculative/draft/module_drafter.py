"""Shared by the drafters that read the target's states: the module's name, its states and its cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pardec.models.draft_modules.contracts import DraftModule, ModuleName
from pardec.models.errors import ModelError, PardecError, SpecError
from pardec.models.finite import by_weights
from pardec.models.model import LanguageModel
from pardec.models.plan import TargetStates

from ...request import Request
from ...spec import DraftModuleName
from ...traits import Trait
from ..contracts import DecodeContext, SpeculativeSampler
from ..draft_model import StateDrafter


@dataclass(frozen=True)
class ModuleDrafter(StateDrafter):
    """A drafter whose tokens come from a draft module; subclasses are registered under the module's kind.

    With `quantize`, what differs in the last digit may be rounded to neighbours: a row's drafts then depend on its
    batch, and with them the rounds that it takes and which tokens are drawn, but not greedy text or the distribution.
    """

    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (5, 3, 8)}

    name: Annotated[DraftModuleName | None, "the draft module: embedded name, folder or hub id"] = None
    k: Annotated[int, "tokens drafted, which is how deep a tree grows"] = 5

    quantize: Annotated[
        Literal["int8", "int4"] | None,
        "its matmuls in 8 bits, on a CPU, with weights of 8 or 4 bits; the default is none",
    ] = None

    def __post_init__(self) -> None:
        self.require("k", least=1)

    def check(self, sampler: SpeculativeSampler) -> None:
        if not self.name:
            kind = self.registered[0]
            raise SpecError(
                f"{kind}: name is missing; it names the draft module",
                hint=f"write {kind}:name=... with an embedded name, a folder or a hub id, trained for the target",
            )

    @property
    def provides(self) -> frozenset[Trait]:
        return frozenset({Trait.TAKES_SHAPE, Trait.TAKES_LENGTH, Trait.READS_PROMPT})

    @property
    def needed_module(self) -> ModuleName | None:
        if self.name is None:
            return None
        more = () if self.quantize is None else (("quantize", self.quantize),)
        return ModuleName(self.registered[0], self.name, (*self.options(), *more))

    def options(self) -> tuple[tuple[str, Any], ...]:
        """The options for loading the module, in addition to its name."""
        return ()

    def fitting_module(self, context: DecodeContext) -> Any:
        """The request's module. Raises SpecError for a fixed tree that is deeper than the module drafts."""
        module, shape = module_of(context), context.sampler.shape
        levels = None if shape is None else shape.fixed_depth
        if levels is not None and module.depth is not None and min(self.k, levels) > module.depth:
            raise SpecError(
                f"{self.registered[0]}: the tree is {levels} levels deep, and {module.name} drafts {module.depth}"
                " tokens ahead",
                hint=f"write k={module.depth}, which cuts the tree to that depth",
            )
        return module

    def target_states(self, request: Request) -> TargetStates | None:
        states: TargetStates = module_of(request).states
        return states

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> float | None:
        """The parameters that a forward of the module reads, divided by the target's."""
        return draft_model.parameters_read / target.parameters if isinstance(draft_model, DraftModule) else None


def module_of(where: Request | DecodeContext) -> Any:
    """The draft module of a request; its kind is the drafter's, which loading has checked."""
    request = where.request if isinstance(where, DecodeContext) else where
    if not isinstance(request.draft_model, DraftModule):
        raise ModelError("the request has no draft module", "load it and pass it as Request.draft_model")
    return request.draft_model


def module_failure(module: DraftModule, hint: str = "") -> PardecError:
    """The error for logits of a draft module that are not finite."""
    error = by_weights(module.name, "logits", module)
    return error or ModelError(f"the draft module {module.name} gives logits that are not finite", hint)
