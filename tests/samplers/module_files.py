"""Random draft modules for toys, written in their published layouts and loaded like other files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from pardec.models.draft_modules.contracts import DraftModule, ModuleName
from pardec.models.draft_modules.load import load_draft_module
from pardec.models.model import LanguageModel
from pardec.requests import draft_models
from pardec.samplers.ops.judge_heads import JudgeHead
from pardec.samplers.speculative.accept import judge as accept_judge
from pardec.samplers.speculative.contracts import RoundResult
from pardec.samplers.speculative.draft.probe_drafter import ProbeState
from tests.models.draft_modules import dflash_writer
from tests.reference import eagle_folders, head_folders, naive_kangaroo, naive_mtp


def medusa(folder: Path, model: LanguageModel) -> Path:
    tensors = head_folders.medusa(model.width, model.vocab_size, 3)
    return head_folders.write(folder, tensors, head_folders.CONFIGS["v0.1"], "medusa_lm_head.pt")


def hydra(folder: Path, model: LanguageModel) -> Path:
    """A Hydra++, whose heads follow a layer of the model's sizes."""
    stack: Any = model.decoder
    sizes = stack.config
    layer = {"heads": sizes.heads, "kv_heads": sizes.kv_heads, "head_dim": sizes.head_dim, "inner": sizes.mlp_width}
    tensors = head_folders.hydra(model.width, model.vocab_size, 3, prefix=layer)
    config = head_folders.CONFIGS["hydra"] | {"hydra_head_arch": "prefix-mlp"}
    return head_folders.write(folder, tensors, config, "hydra_lm_head.pt")


def eagle(folder: Path, model: LanguageModel) -> Path:
    """An EAGLE-3 of two layers and three quarters of the vocabulary, which reads the first three layers."""
    taps = list(range(min(3, model.layers)))
    sizes = {"width": model.width, "target": model.width, "vocab": model.vocab_size, "layers": 2, "states": len(taps)}
    ids = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": taps}}
    draft = max(2, model.vocab_size * 3 // 4)
    eagle_folders.write(folder, "speculators", draft=draft, change=lambda tensors, config: config.update(ids), **sizes)
    return folder


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Random values, the same on every machine."""
    return torch.from_numpy(np.random.RandomState(seed).standard_normal(shape) * scale).float()


def write(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], stem: str = "model") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / f"{stem}.safetensors")
    (folder / ("adapter_config.json" if stem == "adapter_model" else "config.json")).write_text(json.dumps(config))
    return folder


def prompts(folder: Path, model: LanguageModel, steps: int = 3, each: int = 1, seed: int = 0, **config: Any) -> Path:
    settings = {"peft_type": "PROMPT_TUNING", "num_special_tokens": steps, "virtual_tokens_per_special_token": each}
    vectors = random(steps * each, model.width, seed=seed)
    return write(folder, {"prompt_embeddings": vectors}, settings | config, "adapter_model")


def transfer(folder: Path, model: LanguageModel, layers: tuple[int, ...] | None = None, seed: int = 0) -> Path:
    if layers is None:  # a layer each, as high as they can be
        layers = tuple(range(max(0, model.layers - 4), model.layers - 1))
    maps = {
        f"transfer.{j}.weight": random(model.width, model.width, seed=seed + j, scale=0.4) for j in range(len(layers))
    }
    return write(folder, maps, {"model_type": "hidden_transfer", "layers": list(layers)})


def falcon(folder: Path, model: LanguageModel, block: int = 2, **more: Any) -> Path:
    """An EAGLE-1 with the offsets of blocks."""

    def offsets(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        tensors["block_offsets.weight"] = random(block - 1, model.width, seed=block)

    sizes: dict[str, Any] = {"width": model.width, "target": model.width, "vocab": model.vocab_size, "change": offsets}
    eagle_folders.write(folder, "eagle", **{**sizes, **more})
    return folder


def kangaroo(folder: Path, model: LanguageModel, exit_layer: int = 1, **more: Any) -> Path:
    """An adapter after the first layer."""
    stack: Any = model.decoder
    sizes = stack.config
    shape = {"heads": sizes.heads, "kv_heads": sizes.kv_heads, "head_dim": sizes.head_dim}
    tensors, config = naive_kangaroo.adapter(model.width, **shape)
    return write(folder, tensors, config | {"exit_layer": exit_layer} | more)


def mtp(folder: Path, model: LanguageModel) -> Path:
    """A layer of the model's sizes."""
    stack: Any = model.decoder
    sizes = stack.config
    shape = {"heads": sizes.heads, "kv_heads": sizes.kv_heads, "head_dim": sizes.head_dim}
    return write(folder, *naive_mtp.layer("nextn", model.width, **shape))


def dflash(folder: Path, model: LanguageModel) -> Path:
    """A DSpark with a Markov head over paths, so that the children of siblings differ."""
    taps = tuple(range(min(2, model.layers)))
    sizes = {"vocab": model.vocab_size, "width": model.width, "mask": model.vocab_size - 1, "taps": taps, "block": 3}
    dflash_writer.write(folder, markov="rnn", confidence="token", dtype=torch.float32, **sizes)
    return folder


def longspec(folder: Path, model: LanguageModel, window: int = 6, prefix: str = "", biased: bool = True) -> Path:
    """A layer of the target's sizes with a narrow window."""
    stack: Any = model.decoder
    sizes = stack.config.of(model.layers - 1)
    dim, width = sizes.head_dim, model.width
    shapes = {"mlp.gate_proj": (20, width), "mlp.up_proj": (20, width), "mlp.down_proj": (width, 20)}
    for name in ("self_attn", "cross_attn"):
        rows = {"q": sizes.heads * dim, "k": sizes.kv_heads * dim, "v": sizes.kv_heads * dim}
        shapes |= {f"{name}.{part}_proj": (count, width) for part, count in rows.items()}
        shapes[f"{name}.o_proj"] = (width, sizes.heads * dim)
    tensors = {
        f"{prefix}{name}.weight": random(*shape, seed=at, scale=0.4) for at, (name, shape) in enumerate(shapes.items())
    }
    if biased:
        for at, (name, shape) in enumerate(shapes.items()):
            if name.rpartition(".")[2] in ("q_proj", "k_proj", "v_proj"):
                tensors[f"{prefix}{name}.bias"] = random(shape[0], seed=50 + at, scale=0.3)
    for at, name in enumerate(("input", "post_self_attention", "post_cross_attention")):
        tensors[f"{prefix}{name}_layernorm.weight"] = 1 + random(width, seed=90 + at, scale=0.2)
    return write(folder, tensors, {"window": window})


WRITERS: dict[str, Callable[[Path, LanguageModel], Path]] = {
    "dflash": dflash,
    "eagle": eagle,
    "falcon": falcon,
    "hydra": hydra,
    "kangaroo": kangaroo,
    "longspec": longspec,
    "medusa": medusa,
    "mtp": mtp,
    "prompts": prompts,
    "transfer": transfer,
}


def random_module(kind: str, target: LanguageModel, **options: Any) -> DraftModule:
    """A module of this kind for the target."""
    with TemporaryDirectory() as folder:
        return load_draft_module(WRITERS[kind](Path(folder) / kind, target), target, kind=kind, **options)


@contextmanager
def random_modules() -> Iterator[None]:
    """Replaces every draft module of `name=`, and every judge's `head=`, by a random one."""
    load = draft_models.draft_module

    def module(wanted: ModuleName, target: LanguageModel) -> DraftModule:
        if wanted.kind not in WRITERS:
            return load(wanted, target)
        known: dict[Any, DraftModule] = target.draft_modules  # where real ones are kept, too
        key = (wanted, WRITERS[wanted.kind])
        if key not in known:
            known[key] = random_module(wanted.kind, target, **dict(wanted.options))
        return known[key]

    judge = random_judge()
    with patch.object(draft_models, "draft_module", module), patch.object(accept_judge, "load_judge", lambda _: judge):
        yield


def random_judge(width: int = 16, seed: int = 0) -> JudgeHead:
    """A head for `judge` on toys of this width; it finds about half of all tokens important."""
    return JudgeHead(torch.zeros(width), torch.ones(width), random(width, seed=seed), torch.zeros(()))


@contextmanager
def learned() -> Iterator[list[tuple[list[int], Tensor]]]:
    """Records for each row and round the text before the next node 0, and logits [m, V]."""
    seen: list[tuple[list[int], Tensor]] = []
    observe = ProbeState.observe

    def watched(self: ProbeState, outcome: RoundResult) -> None:
        observe(self, outcome)
        raw = self.module.logits(self.states)
        for row, count in enumerate(self.known.tolist()):
            seen.append((self.context.text.row(row).tolist()[:-1], raw[row, :count]))

    with patch.object(ProbeState, "observe", watched):
        yield seen
