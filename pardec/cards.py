"""Cards of the samplers and models that ship with the package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pardec.models.loading.catalog import EMBEDDED, embedded_names

if TYPE_CHECKING:
    from pardec.samplers.cards import Card
    from pardec.samplers.presets import Preset


@dataclass(frozen=True, slots=True)
class ModelCard:
    """An embedded model: its number of parameters, its accuracy per sampler; README.md in `path` says more."""

    name: str
    family: str
    summary: str
    parameters: int
    accuracy: Mapping[str, Any]
    path: str


def list_samplers() -> list[Card]:
    """The card of every method: name, stage, family, exact, summary, paper, parameters, file, line, checked.

    >>> next(card.stage for card in list_samplers() if card.name == "threshold")
    'select'
    """
    from pardec.samplers.cards import cards

    return cards()


def list_presets() -> list[Preset]:
    """Every preset: name, spec, paper, summary, and the arguments of `generate` that it sets.

    >>> next(preset.spec for preset in list_presets() if preset.name == "fast-dllm")
    'threshold:tau=0.9@dual'
    """
    from pardec.samplers.registry import presets

    return list(presets())


def list_models() -> list[ModelCard]:
    """The card of every model that ships with the package; needs no torch.

    >>> "tiny-dream" in [card.name for card in list_models()]
    True
    """
    cards = []
    for name in embedded_names():
        folder = EMBEDDED / name
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
        family = str(config["model_type"]).lower()
        cards.append(ModelCard(name, family, card["summary"], card["parameters"], card["accuracy"], str(folder)))
    return cards
