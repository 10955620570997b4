"""The modules that an adapter's config targets, as PEFT chooses them, compared with those in its file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from ..errors import ModelError, listed


@dataclass(frozen=True, slots=True)
class Targets:
    """The modules that a config names: by the end of their names or by a pattern, of all layers or of some."""

    targets: str | list[str]
    excluded: str | list[str]
    whole: list[str]  # modules_to_save
    layers: list[int]  # empty: all
    patterns: list[str]  # name parts before a layer's number; empty: any

    def __contains__(self, module: str) -> bool:
        if _named(self.excluded, module) or any(re.match(rf"(^|.*\.){name}($|\..*)", module) for name in self.whole):
            return False
        if isinstance(self.targets, str):
            return self.targets == "all-linear" or re.fullmatch(self.targets, module) is not None
        if module in self.targets or not self.layers:
            return _named(self.targets, module)
        return _named(self.targets, module) and self._layer(module) in self.layers

    def _layer(self, module: str) -> int | None:
        patterns = [rf"(?:^|.*?\.){name}" for name in self.patterns] or [r".*?\.[^.]*"]
        match = next(filter(None, (re.match(rf"{pattern}\.(\d+)\.", module) for pattern in patterns)), None)
        return None if match is None else int(match[1])


def read_targets(name: str, config: Mapping[str, Any]) -> Targets | None:
    """The targets of the adapter `name`; None where its config names none. Raises ModelError for unusable settings."""
    values = {
        key: config.get(key)
        for key in ("target_modules", "exclude_modules", "modules_to_save", "layers_pattern", "layers_to_transform")
    }
    layers = values.pop("layers_to_transform")
    indices = layers if isinstance(layers, list) else [] if layers is None else [layers]
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in indices):
        raise ModelError(f"the adapter {name} has layers_to_transform={layers!r}, and numbers of layers are needed")
    for key, value in values.items():
        words = value if isinstance(value, list) else [value or ""]
        if not all(isinstance(word, str) for word in words):
            raise ModelError(f"the adapter {name} has {key}={value!r}, and names of modules are needed")
        try:
            for word in words:
                re.compile(word)
        except re.error as error:
            raise ModelError(f"the adapter {name} has a {key} that is no pattern: {error}") from error
    if not values["target_modules"]:
        return None
    return Targets(
        values["target_modules"],
        values["exclude_modules"] or [],
        _list(values["modules_to_save"]),
        indices,
        _list(values["layers_pattern"]),
    )


def missing_layers(targets: Targets, modules: Iterable[str], base: Iterable[str]) -> tuple[list[str], list[str]]:
    """Modules of the `base` that are targeted, and that the adapter's `modules` lack.

    First those of which it has the same in another layer, then those of which it has none.
    """
    present = set(modules)
    kinds = {_generic(module) for module in present}
    lacking = [module for module in base if module in targets and module not in present]
    cut = [module for module in lacking if _generic(module) in kinds]
    return cut, [module for module in lacking if _generic(module) not in kinds]


def same_base(trained_on: object, name: str) -> bool:
    """Whether an adapter's base_model_name_or_path may be the model `name`; True where it has none."""
    return not isinstance(trained_on, str) or not trained_on or _plain(trained_on) == _plain(name)


def refuse_untargeted(name: str, targets: Targets, modules: Iterable[str]) -> None:
    """Raises ModelError for modules that the file changes and the config does not target, which PEFT leaves alone."""
    others = [module for module in modules if module not in targets]
    if others:
        raise ModelError(
            f"the adapter {name} holds updates of {listed(others, 3)}, which its config does not target "
            "(target_modules, exclude_modules, layers_to_transform)",
            "PEFT ignores them: add them to target_modules, or remove them from the file",
        )


def _named(names: str | list[str], module: str) -> bool:
    if isinstance(names, str):
        return bool(names) and re.fullmatch(names, module) is not None
    return module in names or any(module.endswith(f".{name}") for name in names)


def _list(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) and value else list(value or [])


def _generic(module: str) -> str:
    return re.sub(r"\.\d+(?=\.)", ".{}", module)


def _plain(name: str) -> str:
    """The last part of a hub id or path, also in the hub's cache."""
    parts = PurePath(name).parts
    cached = [part.rsplit("--", 1)[-1] for part in parts if part.startswith("models--")]
    return (cached or [*parts[-1:], ""])[0].lower()
