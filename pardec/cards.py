"""Cards of the samplers and models that ship with the package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from pardec.models.files.catalog import DRAFTERS, EMBEDDED, embedded_drafters, embedded_names

if TYPE_CHECKING:
    from pardec.samplers.cards import Card
    from pardec.samplers.presets import Preset


@dataclass(frozen=True, slots=True)
class ModelCard:
    """An embedded model, with its number of parameters and its accuracy per sampler; README.md in `path` has more."""

    name: str
    family: str
    summary: str
    parameters: int
    accuracy: Mapping[str, Any]
    path: str


@dataclass(frozen=True, slots=True)
class DrafterCard:
    """An embedded draft module, with its target and the tokens per forward that it gained on it."""

    name: str
    kind: str
    target: str
    summary: str
    parameters: int
    acceptance: Mapping[str, Any]
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


def list_drafters() -> list[DrafterCard]:
    """The card of every draft module that ships with the package; needs no torch."""
    cards = []
    for name in embedded_drafters():
        card = json.loads((DRAFTERS / name / "card.json").read_text(encoding="utf-8"))
        own = {field.name: card[field.name] for field in fields(DrafterCard) if field.name != "path"}
        cards.append(DrafterCard(**own, path=str(DRAFTERS / name)))
    return cards
