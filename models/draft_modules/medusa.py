"""Medusa's heads: each predicts one further token from the target's state alone.

Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads, https://arxiv.org/abs/2401.10774

    g_j = h + silu(W_j h + b_j), some times;  logits_j = U_j g_j,  j = 1 .. J,  h the state after the final norm

Head j predicts the token j + 1 positions after the one whose state it reads. How many heads and blocks there are is
counted in the file: published configs name fewer. Rows of a padded vocabulary are cut off.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError, listed
from ..files.weights import Published
from ..model import LanguageModel
from ..plan import TargetStates
from .contracts import DraftFiles, DraftKind, DraftModule, register
from .token_heads import Head, HeadNames, counted, read_heads

_BLOCK = re.compile(r"(?P<stem>(?:medusa_head\.)?(?P<head>\d+)\.(?P<block>\d+)\.linear)\.(?:weight|bias)")
_OUT = re.compile(r"(?P<stem>(?:medusa_head\.)?(?P<head>\d+)\.(?P<block>\d+))\.weight")
_OUT_BIAS = re.compile(r"\d+\.\d+\.bias")
_VLLM_BLOCK = re.compile(r"(?P<stem>(?:medusa_heads\.)?blocks\.(?P<head>\d+)\.layers\.(?P<block>\d+))\.(?:weight|bias)")
_VLLM_OUT = re.compile(r"(?P<stem>(?:medusa_heads\.)?lm_heads\.(?P<head>\d+))\.weight")
_SHARED = ("lm_head", "lm_heads.0", "medusa_heads.lm_head", "medusa_heads.lm_heads.0")  # one matrix for all heads


class Medusa(DraftModule):
    """J heads, whose distributions depend on a node's depth alone."""

    kind = "medusa"
    states = TargetStates(normed=True)

    def __init__(self, files: DraftFiles, target: LanguageModel, heads: list[Head], scale: float = 1.0) -> None:
        """`scale` multiplies the logits: `logit_scale` of the config."""
        super().__init__(files, target)
        self.scale = scale
        self.heads = nn.ModuleList(heads)
        self.depth = len(heads)
        self.shared = len({id(head.out) for head in heads}) == 1  # one product gives the logits of all heads

    @property
    def parameters_read(self) -> int:
        """Parameters per head, on average."""
        return self.parameter_count // len(self.heads)

    def logits(self, states: Tensor, heads: range) -> Tensor:
        """Logits, float32 [B, J, V], of these heads, from the target's states [B, E]."""
        chosen: list[Any] = [self.heads[index] for index in heads]
        if self.shared:
            raw = chosen[0].out(torch.stack([head.states(states) for head in chosen], 1))
        else:
            raw = torch.stack([head(states) for head in chosen], 1)
        return self.over_vocabulary(raw if self.scale == 1 else raw * self.scale)


def _matches(config: Mapping[str, Any], published: Mapping[str, Published]) -> bool:
    return any(pattern.fullmatch(name) for name in published for pattern in (_BLOCK, _VLLM_BLOCK))


def _load(files: DraftFiles, target: LanguageModel) -> Medusa:
    vllm = any(_VLLM_BLOCK.fullmatch(name) for name in files.published)
    heads = _names(files.published, *((_VLLM_BLOCK, _VLLM_OUT) if vllm else (_BLOCK, _OUT)))
    _check_names(files, vllm)
    about = [counted(files, heads, "medusa_num_heads", "num_heads")]
    rows = row_index = None
    if vllm and files.config.get("original_lm_head"):
        stem = next((stem for stem in _SHARED if f"{stem}.weight" in files.published), "")
        for head in heads:
            head.out = stem
        about.append("one matrix of logits for all heads (original_lm_head)")
    mapped = [name for name in files.published if name.rpartition(".")[2] == "token_map"]
    if mapped:
        row_index = files.read_ids(mapped[0]).to(target.device)
        rows = len(row_index)
        if rows and not 0 <= int(row_index.min()) <= int(row_index.max()) < target.vocab_size:
            raise ModelError(
                f"{files.name}: token_map has id {int(row_index.max())}, {target.name} has {target.vocab_size} ids",
                "use the target that the heads were trained on",
            )
        if len(set(row_index.tolist())) < rows:
            raise ModelError(f"token_map of {files.name} names some ids twice", "export it again")
        about.append(f"{rows} of {target.vocab_size} tokens are drafted (token_map)")
    elif (cut := files.config.get("truncated_vocab_size")) and cut < files.config.get("vocab_size", cut):
        raise ModelError(f"{files.name} drafts {cut} of its tokens and lacks token_map, which names them")
    scale = float(files.config.get("logit_scale") or 1.0)
    module = Medusa(files, target, read_heads(files, target, heads, rows=rows, row_index=row_index), scale)
    module.vocabulary = row_index
    if not mapped and (whole := files.published[f"{heads[0].out}.weight"].shape[0]) != target.vocab_size:
        about.append(f"{whole} rows of logits for the target's {target.vocab_size} tokens: padding")
    module.about = tuple(about)
    return module


def _check_names(files: DraftFiles, vllm: bool) -> None:
    """Raises ModelError for tensors that belong to no head, in a file that holds heads alone."""
    if any(name.startswith("medusa_head.") for name in files.published):
        return  # a whole checkpoint, whose other tensors are the target's
    patterns = (_VLLM_BLOCK, _VLLM_OUT) if vllm else (_BLOCK, _OUT, _OUT_BIAS)
    shared = {f"{stem}.weight" for stem in _SHARED}
    known = {name for name in files.published if any(pattern.fullmatch(name) for pattern in patterns)}
    maps = {name for name in files.published if name.rpartition(".")[2] == "token_map"}
    if foreign := sorted(files.published.keys() - known - shared - maps):
        raise ModelError(
            f"{files.name} has tensors that Medusa's heads do not have: {listed(foreign)}",
            "leave them out, or name the folder of the model that they belong to",
        )


def _names(published: Iterable[str], block: re.Pattern[str], out: re.Pattern[str]) -> list[HeadNames]:
    """The names of every head, by its number; a head that has none is empty."""
    heads: defaultdict[int, HeadNames] = defaultdict(HeadNames)
    for name in published:
        if match := block.fullmatch(name):
            heads[int(match["head"])].blocks[int(match["block"])] = match["stem"]
        elif match := out.fullmatch(name):
            heads[int(match["head"])].out = match["stem"]
    return [heads[at] for at in range(max(heads) + 1)]


MEDUSA = register(
    DraftKind(
        name="medusa",
        summary="Medusa: heads on the target's last state, each of which predicts one further token",
        matches=_matches,
        load=_load,
        published={
            "v0.1: medusa_lm_head.pt or .safetensors": "golden/heads",
            "v1.0: medusa_head.* in a whole target checkpoint": "golden/heads",
            "vLLM: blocks.*, lm_heads.*, with token_map or original_lm_head": "a naive module",
        },
    )
)
