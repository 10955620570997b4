"""LoRA adapters as PEFT publishes them, merged into the tensors of a checkpoint while these are read.

LoRA, https://arxiv.org/abs/2106.09685; rsLoRA, https://arxiv.org/abs/2312.03732; DoRA, https://arxiv.org/abs/2402.09353

    W' = W + s B A,  s = alpha / r, or alpha / sqrt(r) with use_rslora
    W' = m (W + s B A) / |W + s B A|, row by row, with use_dora
    embedding: W' = W + s (B A)^T;  bias with lora_bias: b' = b + s b_B

in float32, whatever the dtype of either. Tensors that the adapter holds whole (modules_to_save, biases) take the place
of the checkpoint's. A merged model is a checkpoint like any other: nothing above the reading of files knows of it.

The merge is not PEFT's (0.21.2), though the tensors are bit-equal in every case that both can do. PEFT merges modules
of transformers, and LLaDA, LlamaGen and MAR are none; loading needs no PEFT. It also merges, with a warning or without,
what is refused here: a file that lacks layers or halves of pairs, an update of an embedding that is the head as well.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError, listed
from .sources import locate_adapter, read_json
from .weights import Published, inspect, read

_WRAPPER = "base_model.model."
_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_LOW_RANK = re.compile(r"(.+)\.lora_(A|B|embedding_A|embedding_B|magnitude_vector)((?:\.[^.]+)*)")
_WHOLE = re.compile(r"\.base_layer(?=\.)|\.modules_to_save(\.[^.]+)?(?=\.)")  # parts that PEFT's wrappers add to a name
_BASE = ".original_module."  # the base's tensor of a module that is saved whole, which save_embedding_layers adds
MASK_ID = "mask_token_id"  # a setting of adapters that apply at mask positions only: the id of the mask
NUM_MASKS = "num_masks"  # and how many masks in a row it was trained for
_MERGE = "merge it with PEFT (merge_and_unload), save the result and load that"
# Settings that change the formula for W' above, or have no W'.
_FOREIGN: Mapping[str, str] = {
    "alora_invocation_tokens": "is active only after certain tokens",
    "layer_replication": "repeats layers",
    "target_parameters": "changes parameters that are not the weight of a layer",
    "trainable_token_indices": "changes rows of single tokens",
    "megatron_config": "belongs to Megatron's layers",
    "use_qalora": "pools its inputs",
    "use_bdlora": "is made of diagonal blocks",
    "arrow_config": "chooses among adapters for each token",
    "kasa_config": "changes the singular values of its base",
    "monteclora_config": "samples its weights",
    "velora_config": "projects its inputs",
}
_CUT = "its file is incomplete: save it again, or change its config to match the file"
# Settings that change nothing once the adapter is trained, or that are read where the tensors are.
_KNOWN = frozenset(
    (
        *("task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
        *("inference_mode", "r", "target_modules", "exclude_modules", "lora_alpha", "lora_dropout", "fan_in_fan_out"),
        *("bias", "use_rslora", "modules_to_save", "init_lora_weights", "layers_to_transform", "layers_pattern"),
        *("rank_pattern", "alpha_pattern", "megatron_core", "loftq_config", "eva_config", "corda_config"),
        *("lora_ga_config", "use_dora", "qalora_group_size", "runtime_config", "lora_bias", "ensure_weight_tying"),
    )
)
_OURS = frozenset((MASK_ID, NUM_MASKS, "torch_dtype"))  # settings that our own exports add
_OTHER_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # initialisations that change the base as well


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """An adapter's change of one tensor."""

    whole: Tensor | None = None  # replaces the tensor; a and b, if any, are added to it
    a: Tensor | None = None  # [r, K], of an embedding [r, V]
    b: Tensor | None = None  # [N, r], of an embedding [E, r]
    magnitude: Tensor | None = None  # [N]
    bias: Tensor | None = None  # [N]: added after scaling
    scale: float = 1.0
    transposed: bool = False  # W is [K, N]: of an embedding, and of GPT-2's linear layers

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the changed tensor, before it is transposed."""
        if self.a is not None and self.b is not None:
            return self.b.shape[0], self.a.shape[1]
        only = self.bias if self.whole is None else self.whole
        return None if only is None else tuple(only.shape)

    @property
    def low_rank(self) -> bool:
        """Whether it adds s B A to a matrix [N, K], and does nothing else."""
        more = self.whole, self.magnitude, self.bias
        return self.a is not None and self.b is not None and not self.transposed and all(each is None for each in more)

    def equals(self, other: Update | None) -> bool:
        """Whether `other` is the same change."""
        if other is None or (self.scale, self.transposed) != (other.scale, other.transposed):
            return False
        pairs = [(getattr(self, part), getattr(other, part)) for part in ("whole", "a", "b", "magnitude", "bias")]
        return all(one is two if one is None or two is None else torch.equal(one, two) for one, two in pairs)

    @property
    def only_whole(self) -> Tensor | None:
        """The tensor's replacement; None where the update adds to the tensor."""
        return self.whole if self.a is None and self.bias is None else None

    def __call__(self, weight: Tensor) -> Tensor:
        weight = weight if self.whole is None else self.whole
        if self.bias is not None:
            return weight.float() + self.scale * self.bias.float()
        if self.a is None or self.b is None:
            return weight
        delta = self.scale * (self.b.float() @ self.a.float())
        merged = weight.float() + (delta.t() if self.transposed else delta)
        if self.magnitude is None:
            return merged
        rows = merged.t() if self.transposed else merged
        factor: Tensor = self.magnitude.float() / torch.linalg.norm(rows, dim=1)
        rows = factor[:, None] * rows
        return rows.t() if self.transposed else rows


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter whose files have been read. Made by `read_adapter`."""

    name: str
    config: Mapping[str, Any]
    updates: dict[str, Update] = field(repr=False)  # by the published name of the tensor
    targets: Targets | None = field(default=None, repr=False)

    def merge(
        self,
        published: Mapping[str, Published],
        *,
        base: str,
        tied: tuple[str, str] | None = None,
        twin: Callable[[str], str | None] = lambda name: None,
        conv1d: bool = False,
    ) -> dict[str, Published]:
        """The tensors of the checkpoint `base`; those that the adapter changes are merged when they are read.

        Args:
            published: the checkpoint's.
            tied: the names of an embedding and of the head that shares its tensor.
            twin: the other name of a tensor that two modules of the checkpoint share, None for all others.
            conv1d: whether linear layers may hold their weight [in, out], as GPT-2's of transformers do.

        Raises ModelError, with the names, where the adapter is not one of this checkpoint, or lacks one of its layers.
        Warns of one that was trained on a model of another name.
        """
        if self.config.get(MASK_ID) is not None:
            raise ModelError(
                f"the adapter {self.name} applies at mask positions only ({MASK_ID}); merged, it would change the "
                f"text of {base}",
                f"draft with it: sampler=idlm:name={self.name}",
            )
        self._refuse_one_of_twins(twin, base)
        updates = self._without_tied(published, tied, base) if tied else self.updates
        unknown = [name for name in updates if name not in published and twin(name) not in published]
        if unknown:
            raise ModelError(
                f"the adapter {self.name} changes {len(unknown)} tensors that {base} does not have: {listed(unknown)}",
                f"{base} has {listed(published, 4)}; load the base that the adapter was trained on"
                + (f", {name}" if (name := self.config.get("base_model_name_or_path")) else ""),
            )
        self._check_complete(published, base)
        merged, misshapen = dict(published), []
        for name, update in updates.items():
            if name not in published:  # the checkpoint has its tensor under the twin's name
                continue
            entry = published[name]
            fitting = self._fit(update, entry.shape, conv1d=conv1d)
            if fitting is None:
                misshapen.append(f"{name} is {list(entry.shape)} and its update {list(update.shape or ())}")
            elif entry.dtype is None:
                raise ModelError(
                    f"the adapter {self.name} changes {name} of {base}, which is not floating-point",
                    "load the unquantized base",
                )
            else:
                merged[name] = replace(entry, change=fitting)
        if misshapen:
            raise ModelError(
                f"the adapter {self.name} does not fit {base}: {listed(misshapen, 4)}",
                "load the base that it was trained on; if the vocabulary was resized, " + _MERGE,
            )
        return merged

    def _refuse_one_of_twins(self, twin: Callable[[str], str | None], base: str) -> None:
        """Refuses to change one of two modules with shared tensors, or the two differently: merging changes both."""
        for name, update in self.updates.items():
            other = twin(name)
            if other is not None and not update.equals(self.updates.get(other)):
                raise ModelError(
                    f"the adapter {self.name} changes {name} and {other} differently, which are one tensor of {base}",
                    "merged, it would change both modules: train the adapter on both with the same values, or run it "
                    "unmerged in transformers",
                )

    def _check_complete(self, published: Mapping[str, Published], base: str) -> None:
        trained_on = self.config.get("base_model_name_or_path")
        if not same_base(trained_on, base):
            warnings.warn(
                f"the adapter {self.name} was trained on {trained_on} (base_model_name_or_path), and is merged into "
                f"{base}",
                stacklevel=4,
            )
        whole = self.config.get("modules_to_save") or []
        unsaved = [name for name in whole if not any(f"{name}." in key for key in self.updates)]  # endings, as for PEFT
        if unsaved:
            raise ModelError(
                f"the adapter {self.name} lacks {listed(unsaved)}, which its config names in modules_to_save", _CUT
            )
        if self.targets is None:
            return
        modules = {key.removesuffix(".weight") for key, update in self.updates.items() if update.a is not None}
        linear = [
            name.removesuffix(".weight")
            for name, entry in published.items()
            if name.endswith(".weight") and len(entry.shape) == 2
        ]
        cut, absent = missing_layers(self.targets, modules, linear)
        if cut:
            raise ModelError(
                f"the adapter {self.name} lacks {listed(cut, 4)}, which its config targets (target_modules) and which "
                "it has for other layers",
                _CUT,
            )
        if absent and self.targets.targets != "all-linear":
            warnings.warn(
                f"the adapter {self.name} has no tensors for {listed(absent, 4)}, which its config targets "
                "(target_modules)",
                stacklevel=4,
            )

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors, which are in memory until the model is loaded."""
        parts = ("whole", "a", "b", "magnitude", "bias")
        tensors = [getattr(update, part) for update in self.updates.values() for part in parts]
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def summary(self) -> str:
        """A description of the merged adapter."""
        return f"adapter {self.name} merged into {len(self.updates)} tensors"

    def _fit(self, update: Update, shape: tuple[int, ...], *, conv1d: bool) -> Update | None:
        """The update as it applies to a tensor of this shape; None where it does not."""
        if update.whole is not None and update.whole.shape != shape:
            return None
        swapped = update.shape is not None and update.shape[::-1] == shape
        if update.transposed:  # an embedding's
            return update if swapped else None
        if conv1d and swapped and self.config.get("fan_in_fan_out"):
            return replace(update, transposed=True)
        return update if update.shape == shape else None

    def _without_tied(self, published: Mapping[str, Published], tied: tuple[str, str], base: str) -> dict[str, Update]:
        """The updates of a base whose embedding and head are one tensor. Raises ModelError for updates that need two.

        PEFT runs W + s B A in one and W in the other. If both are saved whole, and equal, they still are one tensor.
        """
        embed, head = tied
        either = [name for name in tied if name in self.updates]
        if not either:
            return self.updates
        values = [self.updates[name].only_whole for name in tied if name in self.updates]
        first, last = values[0], values[-1]
        if len(values) < 2 or first is None or last is None or not torch.equal(first, last):
            raise ModelError(
                f"the adapter {self.name} changes {' and '.join(either)}, and in {base} {embed} is tied to {head}",
                "merged, it would change both. Untie them in a copy of the checkpoint (tie_word_embeddings=false, and "
                "the tensor under both names), and load that",
            )
        return {name: update for name, update in self.updates.items() if name != head or head in published}


def read_adapter(name_or_path: str | os.PathLike[str], *, offline: bool = False) -> Adapter:
    """The adapter in a folder or hub repository, in memory.

    Raises ModelError, by name and with the reason, for what cannot be merged: another kind of adapter, settings under
    which it is no sum, halves of pairs, a rank other than the config's.
    """
    source = locate_adapter(name_or_path, offline=offline)
    config = read_json(source.folder / "adapter_config.json", required=True)
    _check_config(source.name, config)
    file = next((source.folder / name for name in _FILES if (source.folder / name).is_file()), None)
    if file is None:
        raise ModelError(f"the adapter {source.name} has no weights", f"its folder holds {' or '.join(_FILES)}")
    updates, targets = _read_updates(source.name, config, file), read_targets(source.name, config)
    if targets is not None:
        modules = [key.removesuffix(".weight") for key, update in updates.items() if update.a is not None]
        refuse_untargeted(source.name, targets, modules)
    return Adapter(source.name, config, updates, targets)


def _check_config(name: str, config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"the adapter {name} is of peft_type {kind}, and only LORA can be merged", _MERGE)
    for setting, what in _FOREIGN.items():
        if config.get(setting):
            raise ModelError(
                f"the adapter {name} {what} ({setting}), and cannot be merged into its base", "run it unmerged in PEFT"
            )
    unknown = [key for key, value in config.items() if value and key not in _KNOWN | _OURS | _FOREIGN.keys()]
    if unknown:
        warnings.warn(
            f"the adapter {name} has unknown settings, which are ignored as in PEFT: {listed(unknown)}", stacklevel=3
        )
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_OTHER_BASE):
        raise ModelError(
            f"the adapter {name} was initialised by {start}, which changes the base as well",
            "convert it when it is saved (path_initial_model_for_weight_conversion), or " + _MERGE,
        )
    for flag in ("use_rslora", "use_dora", "lora_bias", "fan_in_fan_out"):
        if (value := config.get(flag)) is not None and not isinstance(value, bool):
            raise ModelError(f"the adapter {name} has {flag}={value!r}, and true or false is needed")
    _rank(name, config.get("r"))
    _alpha(name, config.get("lora_alpha"))
    for pattern in ("rank_pattern", "alpha_pattern"):
        if not isinstance(config.get(pattern) or {}, dict):
            raise ModelError(f"the adapter {name} has {pattern}={config[pattern]!r}, and an object is needed")


def _read_updates(name: str, config: Mapping[str, Any], file: Path) -> dict[str, Update]:
    published = inspect([file])
    foreign = [key for key, entry in published.items() if entry.dtype is None]
    if foreign:
        raise ModelError(f"the adapter {name} holds tensors that are not floating-point: {listed(foreign)}")
    tensors: dict[str, Tensor] = {}
    read(published, lambda key, tensor: tensors.__setitem__(key, tensor.clone()))
    whole: dict[str, Tensor] = {}
    low_rank: dict[str, dict[str, Tensor]] = {}
    adapters = set()
    for key, tensor in tensors.items():
        own = key.removeprefix(_WRAPPER)
        if _BASE in own:
            continue
        match = _LOW_RANK.fullmatch(own)
        if match is None:
            plain = _WHOLE.sub("", own)
            if not torch.equal(whole.setdefault(plain, tensor), tensor):
                raise ModelError(f"the adapter {name} holds {plain} twice, with different values")
            continue
        module, part, rest = match[1], match[2], match[3].split(".")[1:]
        leaf = rest.pop() if rest and rest[-1] in ("weight", "bias") else "weight"
        if len(rest) > 1:
            raise ModelError(f"the adapter {name} holds {key}, which is not the name of a LoRA tensor")
        adapters.add("".join(rest))
        low_rank.setdefault(module, {})[part + (".bias" if leaf == "bias" else "")] = tensor
    if len(adapters) > 1:
        raise ModelError(
            f"the adapter {name} holds several adapters: {listed(sorted(filter(None, adapters)))}", "save only one"
        )
    if not tensors:
        raise ModelError(f"the adapter {name} holds no tensors")
    updates = {key: Update(whole=tensor) for key, tensor in whole.items()}
    for module, parts in low_rank.items():
        for key, update in _pair(name, config, module, parts).items():
            updates[key] = replace(update, whole=whole.get(key))
    return updates


def _pair(name: str, config: Mapping[str, Any], module: str, parts: dict[str, Tensor]) -> dict[str, Update]:
    """The updates of one layer's tensors. Raises ModelError unless its parts belong together."""
    embedding = "embedding_A" in parts or "embedding_B" in parts
    a_name, b_name = ("embedding_A", "embedding_B") if embedding else ("A", "B")
    a, b, magnitude, bias = (parts.pop(part, None) for part in (a_name, b_name, "magnitude_vector", "B.bias"))
    if a is None or b is None:
        lacks = f"lora_{a_name if a is None else b_name}"
        raise ModelError(f"the adapter {name} lacks {lacks} of {module}", "its file is cut short: save it again")
    if parts:
        raise ModelError(f"the adapter {name} holds lora_{next(iter(parts))} of {module}, which is unknown")
    if (magnitude is not None) != bool(config.get("use_dora")):
        problem = "holds" if magnitude is not None else "lacks"
        raise ModelError(
            f"the adapter {name} {problem} lora_magnitude_vector of {module}, and its config says "
            f"use_dora={bool(config.get('use_dora'))}"
        )
    if (bias is not None) != bool(config.get("lora_bias")):
        problem = "holds" if bias is not None else "lacks"
        raise ModelError(
            f"the adapter {name} {problem} lora_B.bias, which changes {module}.bias, and its config says "
            f"lora_bias={bool(config.get('lora_bias'))}"
        )
    rank = _rank(name, _by_pattern(name, config, "rank_pattern", module, config["r"]))
    if a.dim() != 2 or b.dim() != 2 or a.shape[0] != rank or b.shape[1] != rank:
        raise ModelError(
            f"the adapter {name} has {list(a.shape)} and {list(b.shape)} for {module}, and its config has r={rank}",
            "a linear layer needs lora_A [r, in] and lora_B [out, r]",
        )
    # Of an embedding [V, E], (B A)^T is added: magnitudes are of the V rows, as PEFT has them.
    rows = a.shape[1] if embedding else b.shape[0]
    if magnitude is not None and (embedding or magnitude.numel() != rows):
        what = "of an embedding, which is not merged" if embedding else f"{list(magnitude.shape)} for {rows} rows"
        raise ModelError(f"the adapter {name} has a lora_magnitude_vector {what}: {module}", _MERGE)
    alpha = _alpha(name, _by_pattern(name, config, "alpha_pattern", module, config["lora_alpha"]))
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    magnitude = None if magnitude is None else magnitude.flatten()
    updates = {f"{module}.weight": Update(a=a, b=b, magnitude=magnitude, scale=scale, transposed=embedding)}
    if bias is not None:
        updates[f"{module}.bias"] = Update(bias=bias, scale=scale)
    return updates


def _by_pattern(name: str, config: Mapping[str, Any], setting: str, module: str, default: Any) -> Any:
    """The value of the first pattern that matches the end of a module's name, as PEFT chooses it."""
    try:
        for pattern, value in (config.get(setting) or {}).items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
    except re.error as error:
        raise ModelError(f"the adapter {name} has a {setting} that is no pattern: {error}") from error
    return default


def _rank(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"the adapter {name} has r={value!r}, and a whole number of at least 1 is needed")
    return value


def _alpha(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ModelError(f"the adapter {name} has lora_alpha={value!r}, and a number is needed")
    return float(value)


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
