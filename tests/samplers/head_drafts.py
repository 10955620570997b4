"""Shared by the tests of heads on the target's last state: random heads on disk, prompts, and expected logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.draft_modules.load import load_draft_module
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.requests import draft_models
from pardec.samplers.events import Finished
from pardec.samplers.speculative.contracts import Draft
from pardec.samplers.speculative.draft.draft_heads import HeadsState, StaticState
from pardec.samplers.speculative.draft.hydra import HydraState
from tests.reference import head_folders, naive_heads
from tests.samplers import ar_toys
from tests.samplers.ar_toys import plain_greedy, toy_ar
from tests.samplers.fake_draft_model import path
from tests.samplers.module_files import random_module

SHAPES = {
    "chain": "chain",
    "template": "template:widths=3-2-1",
    "paths": "paths:tree=0-1-2-0.0-0.1-1.0-0.0.0",
    "beam": "beam:beams=3,nodes=8",
    "dyspec": "dyspec:nodes=8,children=3",
}
LENGTHS = ("", "+heuristic", "+unsure:tau=0.6", "+fallback:below=0.5", "+calibrated:h=0.5", "+goodput:c=0.2")
PROMPTS = [[3], [1, 0, 4, 2, 2, 1, 3], [0, 4], [2, 1, 1, 0, 3, 4, 4, 2, 0, 1, 2], [4, 4, 4], [1, 2, 3, 0]]
NEW = [14, 17, 9, 20, 12, 15]
VARIANTS = ("medusa", "shared", "hydra", "plain", "hydra++")


def run(model: LanguageModel, spec: str, *given: Any, draft_model: Any = None, **more: Any) -> Finished:
    """`ar_toys.run` with this draft module, whatever name the spec has."""
    with patch.object(draft_models, "draft_module", lambda wanted, target: draft_model):
        return ar_toys.run(model, spec, *given, **more)


def close(head: Tensor, heads: int = 3) -> head_folders.Tensors:
    """Hydra heads that roughly predict the target's tokens from its state, and are often right on repeated tokens."""
    width = head.shape[1]
    tensors = head_folders.hydra(width, len(head), heads)
    for index in range(heads):
        stem = f"hydra_mlp.{index}.0"
        tensors[f"{stem}.res_connection.weight"] *= 0.02
        tensors[f"{stem}.res_connection.weight"][:, :width] += torch.eye(width)
        tensors[f"{stem}.linear.weight"] *= 0.1
        tensors[f"hydra_lm_head.{index}.weight"] = head.double() * (1 + index % 2)
    return tensors


def module(variant: str, model: LanguageModel, folder: Path) -> DraftModule:
    """Random heads; some of them resemble the target's own head."""
    stack: Any = model.decoder
    width, vocab, head = model.width, model.vocab_size, stack.head.weight.detach()
    if variant in ("medusa", "shared"):
        tensors = head_folders.medusa(width, vocab)
        for index in range(3):
            tensors[f"{index}.1.weight"] = head.double() if variant == "shared" else head.double() * (1 + 0.1 * index)
        return load_draft_module(
            head_folders.write(folder, tensors, head_folders.CONFIGS["v0.1"], "medusa_lm_head.pt"), model
        )
    if variant == "hydra++":
        return random_module("hydra", model)
    tensors = close(head) if variant == "hydra" else head_folders.hydra(width, vocab, grounded=False)
    return load_draft_module(
        head_folders.write(folder, tensors, head_folders.CONFIGS["hydra"], "hydra_lm_head.pt"), model
    )


@cache
def target() -> LanguageModel:
    return toy_ar(0, 5, 3.0, layers=4)


@cache
def truth(new: tuple[int, ...] = tuple(NEW)) -> list[list[int]]:
    return [plain_greedy(target(), prompt, count) for prompt, count in zip(PROMPTS, new, strict=True)]


def spec_of(drafter: DraftModule, more: str = "", k: int = 3) -> str:
    return f"{drafter.kind}:name=toy,k={k}{more}"


def whole_states(model: LanguageModel, text: list[int], own: Any) -> Tensor:
    """[E]: the input of the heads after a text, from one forward without a cache."""
    states = model.forward(Plan.full(torch.tensor([text]), model.visible())).normed()
    if getattr(own, "prefix", None) is None:
        return states[0, -1]
    order = torch.full(states.shape[:2], -1)
    refined: Tensor = own.prefix(replace(Plan.full(order, model.visible()), soft=states)).normed()[0, -1]
    return refined


@contextmanager
def compared(model: LanguageModel, published: dict[str, Tensor] | None = None) -> Iterator[list[float]]:
    """The largest errors of the states in each round, and of each call's logits, compared with the plain version."""
    errors: list[float] = []

    def checked(kind: type[HeadsState]) -> Any:
        forward = kind.forward

        def compared(self: Any, draft: Draft, nodes: Tensor) -> Tensor:
            logits = forward(self, draft, nodes)
            for row in range(len(nodes)):
                text = self.context.text.row(row).tolist()
                known = whole_states(model, text[:-1], self.module)
                errors.append(float((self.states[row] - known).abs().max()))
                for at, node in enumerate(nodes[row].tolist()):
                    if node >= 0 and published is not None:
                        tokens = [text[-1], *path(draft, row, node)]
                        if self.module.kind == "medusa":
                            true = naive_heads.medusa(published, known)[len(tokens) - 1]
                        else:
                            embedded = list(model.decoder.embedding[torch.tensor(tokens)])
                            true = naive_heads.hydra(published, known, embedded)
                        errors.append(float((logits[row, at] - true).abs().max()) / 1e4)  # logits are in float32
            return logits

        return patch.object(kind, "forward", compared)

    with checked(HydraState), checked(StaticState):
        yield errors


def as_of_whole_texts(kind: str, shape: str, temperature: float, folder: Path, *, rows: int = len(PROMPTS)) -> None:
    """After any acceptances, in float64: the states of one forward over the row, and the plain version's logits."""
    model = toy_ar(0, 5, 3.0, layers=4, dtype=torch.float64)
    layer = {"heads": 2, "kv_heads": 1, "head_dim": 8, "inner": 24}
    if kind == "medusa":
        tensors, config, file = head_folders.medusa(vocab=5), head_folders.CONFIGS["v0.1"], "medusa_lm_head.pt"
    else:
        tensors = head_folders.hydra(vocab=5, grounded=kind != "plain", prefix=layer if kind == "hydra++" else None)
        config, file = head_folders.CONFIGS["hydra"], "hydra_lm_head.pt"
    own = load_draft_module(head_folders.write(folder, tensors, config, file), model)
    with compared(model, tensors) as errors:
        spec = spec_of(own, f"+{SHAPES[shape]}")
        done = run(model, spec, PROMPTS[:rows], NEW[:rows], draft_model=own, temperature=temperature)
    assert max(errors) < 1e-9
    assert len(errors) > 16 * rows
    assert sum(map(sum, done.trace.accepted)) >= rows // 2
