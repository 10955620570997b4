"""Calls for prompts some of which set arguments of `generate` for themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError

from ..io.prompt_files import Item, line_settings

if TYPE_CHECKING:
    from ..api import Model
    from .call import Call


@dataclass(frozen=True)
class LineCalls:
    """The calls of prompts with separate arguments: one row each; `take` returns them one by one."""

    calls: tuple[Call, ...]
    own: tuple[Mapping[str, Any], ...]  # per row, the arguments of its line
    shared: Call  # the call of a row without such arguments

    @property
    def sampler(self) -> Any:
        return self.shared.sampler

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that all rows share."""
        return self.shared.settings

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(call.seeds[0] for call in self.calls)

    @property
    def constraints(self) -> list[str | None]:
        return [call.constraints[0] for call in self.calls]

    @property
    def lengths(self) -> list[int]:
        return [call.lengths[0] for call in self.calls]

    def take(self, rows: Sequence[int]) -> Call:
        """The call of one row."""
        (row,) = rows
        return self.calls[row]


def prepare(model: Model, items: Sequence[Item], arguments: Mapping[str, Any], where: str) -> Any:
    """The call of all prompts, or `LineCalls` if any prompt has separate arguments or is not text.

    Raises:
        SpecError: an argument that cannot work, with the line if it is a line's own.
    """
    shared_arguments: Any = dict(arguments)
    if all(not item.settings and _is_prompt(item.prompt) for item in items):
        return model.prepare([item.prompt for item in items], **shared_arguments)
    from pardec.samplers.rng import row_seed, row_seeds

    count, calls, own = int(shared_arguments.get("num_return_sequences") or 1), list[Any](), list[Mapping[str, Any]]()
    for index, item in enumerate(items):
        line = f"{where}, line {item.line}"
        values = line_settings(item, line)
        seed = values.pop("seed", None)
        if seed is None:
            seeds = [row_seed(int(shared_arguments.get("seed", 0)), index * count + sample) for sample in range(count)]
        else:
            seeds = [seed] if count == 1 else list(row_seeds(seed, count))
        try:
            call = model.prepare(**_prompt(item), **{**shared_arguments, **values, "seed": seeds})
        except SpecError as error:
            raise SpecError(f"{line}: {error.message}", hint=error.hint) from error
        calls += [call.take([sample]) for sample in range(count)]
        own += [item.settings] * count
    token = 1 if model.language_model.decoding_config.mask_id == 0 else 0
    shared: Any = model.prepare(input_ids=[[token]], **shared_arguments)
    return LineCalls(tuple(calls), tuple(own), shared)


def _is_prompt(prompt: Any) -> bool:
    """Whether the value is text or a conversation."""
    return isinstance(prompt, str) or (isinstance(prompt, list) and isinstance(prompt[0], Mapping))


def _prompt(item: Item) -> dict[str, Any]:
    """The prompt as an argument of `generate`."""
    if item.prompt is None:
        return {}
    return {"prompt": [item.prompt]} if _is_prompt(item.prompt) else {"input_ids": [item.prompt]}
