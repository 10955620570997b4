"""Writes a drafter's folder (config and weights in the published form, and a card), and reads one to continue from."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from pardec.models.draft_modules.contracts import DraftFiles
from pardec.models.draft_modules.load import find, recognise
from pardec.models.errors import ModelError, listed
from pardec.models.files.catalog import embedded_names
from pardec.models.model import LanguageModel

from .networks import KINDS, Network, Options
from .states import States

SUMMARY = {
    "eagle": "One layer that drafts for {0} from its hidden states, in EAGLE-3's format.",
    "medusa": "Heads that draft for {0} from its last hidden state, in Medusa's format.",
    "hydra": "Heads that draft for {0} from its last hidden state and the tokens before, in Hydra's format.",
    "dflash": "A block-diffusion drafter for {0} that reads its hidden states, in DFlash's format.",
    "kangaroo": "An adapter with which the first layers of {0} draft for all of them, in Kangaroo's format.",
    "mtp": "A layer that drafts for {0} from its last hidden state, in the format of MTP layers.",
    "idlm": "A LoRA, applied at mask positions only, with which {0} fills in masks after its text, in PEFT's format.",
    "prompts": "Prompt vectors with which {0} drafts for itself, in peft's prompt-tuning format.",
}
EXAMPLE = "Tom has 18 cups. He loses 4. He finds 12 cups. How many cups does Tom have now?"


def export(network: Network, out: Path, card: dict[str, Any], base: str) -> None:
    """Writes the current weights in bfloat16, their config, README.md and card.json.

    Args:
        network: whose weights they are.
        out: the folder.
        card: name, target, recipe, acceptance and curve; the network's own entries are added.
        base: `base_model_name_or_path` of the config.
    """
    out.mkdir(parents=True, exist_ok=True)
    config, tensors = network.export()
    config |= {"base_model_name_or_path": base, "torch_dtype": "bfloat16"}
    weights = {
        name: (value.detach().bfloat16() if value.is_floating_point() else value).cpu().contiguous()
        for name, value in tensors.items()
    }
    part = out / f"{network.file}.part"
    save_file(weights, part, metadata={"format": "pt"})
    part.replace(out / network.file)
    (out / network.config_file).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    count = sum(math.prod(value.shape) for value in weights.values() if value.is_floating_point())
    own = {"summary": SUMMARY[network.kind].format(card["target"]), "kind": network.kind, "parameters": count}
    whole = {"name": card["name"], **own, **card}
    (out / "card.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    (out / "README.md").write_text(readme(whole, (out / network.file).stat().st_size), encoding="utf-8")


def readme(card: dict[str, Any], size: int) -> str:
    """The README.md for a card."""
    measured = card["acceptance"]
    recipe = "\n".join(f"- {name}: {_plain(value)}" for name, value in card["recipe"].items())
    curve = "\n".join(
        f"| {row['seconds']} | {row['step']} | {row['loss']:.3f} | {row['length']:.2f} |" for row in card["curve"]
    )
    depths = "\n".join(f"| {depth} | {share:.1%} |" for depth, share in enumerate(measured["depths"], 1))
    return f"""# {card["name"]}

{card["summary"]} {card["parameters"]:,} parameters, {size / 1e6:.1f} MB, trained as
[below](#recipe); Apache-2.0.

```bash
pardec generate {_target(str(card["target"]))} -s {card["kind"]}:name={card["name"]} -p "{EXAMPLE}"
```

## Measured

{measured["length"]:.2f} tokens a forward of the target: greedy, chains of {len(measured["depths"])},
{measured["rounds"]:,} rounds in {measured["texts"]} texts of the target's own that were held out, on its states, with
these weights.

| drafted tokens | all right |
|---|---|
{depths}

## Recipe

{recipe}

## Curve

| seconds | step | loss | tokens per forward |
|---|---|---|---|
{curve}
"""


def _target(name: str) -> str:
    """The target's name in commands."""
    if name in embedded_names():
        return name
    return "smollm2" if name.startswith("SmolLM2-135M-Instruct") else "TARGET"


def _plain(value: Any) -> str:
    return ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, dict) else str(value)


# What the config of an export says of its target, where the tensors' shapes do not.
_OF_TARGET = (
    *("hidden_size", "num_attention_heads", "head_dim", "vocab_size", "rms_norm_eps", "rope_theta"),
    *("num_target_layers", "token_dim", "num_layers"),
)
_HOST = torch.device("cpu")


@dataclass(frozen=True)
class Exported:
    """An exported folder from which a network starts: the inverse of `export`, except for rounding to bfloat16."""

    files: DraftFiles
    kind: str
    shape: Mapping[str, Any]  # the `Options` that the files decide
    ids: Tensor | None  # [Vd] the target's id of each id that it drafts; None: all

    def options(self, chosen: Mapping[str, Any]) -> Options:
        """The exported shape with the rest as `chosen`. Raises ModelError if `chosen` contradicts the shape."""
        for name, value in self.shape.items():
            if name in chosen and chosen[name] != value:
                option = "--own-head" if name == "tied" else f"--{name.replace('_', '-')}"
                here = "all ids" if value is None else f"{name.replace('_', ' ')} {_text(value)}"
                taken = f"{option} {_text(value)}, or " if value is not None and name != "tied" else ""
                raise ModelError(
                    f"{self.files.name} was exported with {here}, got {_text(chosen[name])}",
                    f"write {taken}leave {option} out to take its shape",
                )
        return Options(**{**chosen, **self.shape})

    def load(self, network: Network, states: States) -> None:
        """Loads the weights into a network with these options and `draft_ids`. Raises ModelError if anything differs.

        Args:
            network: of the same kind.
            states: of the texts that it will learn from.
        """
        config, tensors = network.export()
        published = self.files.published
        problems = [
            f"{key} {self.files.config[key]} instead of {config[key]}"
            for key in _OF_TARGET
            if key in config and self.files.config.get(key, config[key]) != config[key]
        ]
        problems += [f"no tensor {name}" for name in tensors if name not in published]
        problems += [f"a tensor {name}" for name in published if name not in tensors]
        problems += [
            f"{name} {list(published[name].shape)} instead of {list(value.shape)}"
            for name, value in tensors.items()
            if name in published and published[name].shape != value.shape
        ]
        if problems:
            raise ModelError(
                f"{self.files.name} is not a {self.kind} for {network.target.model.name}: it has {listed(problems)}",
                "name the target that it was exported for",
            )
        ids = [name for name in tensors if published[name].dtype is None]  # the maps between draft ids and target ids
        weights = self.files.read({name: name for name in tensors if name not in ids}, torch.float32, _HOST)
        network.load_weights(weights | {name: self.files.read_ids(name).float() for name in ids}, states)


def read_export(name_or_path: str | os.PathLike[str], target: LanguageModel, kind: str | None = None) -> Exported:
    """Reads the drafter of an embedded name, a folder or a hub id, as the start of a training for `target`.

    Raises ModelError for files that are of another kind, of a variant that cannot be trained, or of another target.
    """
    files = find(name_or_path)
    match = recognise(files).name
    if match not in KINDS or kind not in (None, match):
        raise ModelError(
            f"{files.name} is a draft module of kind {match}" + (f", not {kind}" if kind else ""),
            f"write --kind {match}" if match in KINDS else f"kinds that are trained: {', '.join(KINDS)}",
        )
    shape, ids = KINDS[match].read_shape(files, target), None
    if "d2t" in files.published:
        offsets = files.read_ids("d2t")
        ids = torch.arange(len(offsets)) + offsets
        if bool(((ids < 0) | (ids >= target.vocab_size)).any()):
            raise ModelError(
                f"d2t of {files.name} names ids outside {target.name}'s vocabulary of {target.vocab_size}",
                "name the target that it was exported for",
            )
    return Exported(files, match, {**shape, "vocab": None if ids is None else len(ids)}, ids)


def _text(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)
