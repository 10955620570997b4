"""A checkpoint's own layer for multi-token prediction (MTP): pairs of a token and the target's state before it.

DeepSeek-V3 Technical Report, https://arxiv.org/abs/2412.19437 (section 2.2)
MiMo: Unlocking the Reasoning Potential of Language Model, https://arxiv.org/abs/2505.07608

    nextn:  u = W [norm_e(e(x_(t+1))); norm_h(h_t)]
    MiMo:   u = W [norm_h(h_t); norm_e(e(x_(t+1)))]
    z_t = layer(u)_t;  logits of x_(t+2) = target's head norm(z_t)

`layer` is a decoder layer with K/V of its own. Further tokens use the same layer again: its output replaces h. Which
state h is, the reports leave open. In the nextn layout it is the target's after its final norm, and norm(z) replaces
it, as in transformers' `MtpLayer`. In MiMo's layout neither is normed: h is the output of the last layer, and z
replaces it, as in exllamav3 (pull request 238), where 88 % of first drafts in code are accepted; vLLM norms both. If
there are several such layers, only the first drafts: implementations differ in what the others read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..caches.kv_cache import KVCache
from ..decoder_config import DecoderConfig
from ..errors import ModelError, listed
from ..files.weights import Published
from ..kernels.matmul import matmul
from ..kernels.ops import choose_ops
from ..layers.empty_weights import empty_weights
from ..layers.layer import DecoderLayer
from ..layers.rope import Rope
from ..loading.unread import MTP_COUNTS
from ..model import LanguageModel
from ..plan import Hidden, Plan, TargetStates
from .contracts import DraftFiles, DraftKind, DraftModule, register
from .eagle_files import layer_shape
from .parameters import check_head, fill, layer_names, left_out, parameter

_MIMO, _NEXTN = r"model\.mtp_layers\.(\d+)\.input_proj\.weight", r"model\.layers\.(\d+)\.eh_proj\.weight"
_OTHERS = r"(?:model\.)?mtp[._].*"  # layouts that are recognised only to be refused
_FOREIGN = {  # parts of layers that a dense decoder layer does not have
    "mlp.experts.": "a mixture of experts",
    "self_attn.kv_a_proj_with_mqa.": "compressed keys and values (MLA)",
}
_PARTS = {
    "MiMo": ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
    "nextn": ("enorm", "hnorm", "eh_proj", "shared_head.norm"),
}


@dataclass(frozen=True, slots=True)
class MtpLayout:
    """The MTP layer that drafts: where it is in the files, and the shape of its decoder layer."""

    style: str  # "MiMo" or "nextn"
    stem: str  # its tensors' names begin with this
    layers: int  # MTP layers in the files; the first one drafts
    config: DecoderConfig

    @property
    def normed(self) -> bool:
        """Whether it reads states, the target's and its own, after a norm."""
        return self.style == "nextn"

    @property
    def names(self) -> dict[str, str | tuple[str, ...]]:
        """The published name or names of each parameter."""
        own = ("token_norm", "state_norm", "projection", "norm")
        names: dict[str, str | tuple[str, ...]] = {
            name: f"{self.stem}{part}.weight" for name, part in zip(own, _PARTS[self.style], strict=True)
        }
        return names | layer_names("layer.", self.stem)


class MtpModule(DraftModule):
    """Runs plans whose `soft` [B, Q, E] are the states before each token: the target's, or its own outputs."""

    kind: ClassVar[str] = "mtp"
    head_read: ClassVar[bool] = True  # loading has looked at every weight

    def __init__(self, files: DraftFiles, target: LanguageModel, form: MtpLayout) -> None:
        super().__init__(files, target)
        config = form.config
        self.form, self.layers_config, self.width, self.epsilon = form, config, config.width, config.norm_eps
        self.states = TargetStates(normed=True) if form.normed else TargetStates((target.layers - 1,))
        self.token_norm, self.state_norm = parameter(self.width), parameter(self.width)
        self.projection, self.norm = parameter(self.width, 2 * self.width), parameter(self.width)
        self.layer = DecoderLayer(config)
        self.rope = Rope.of(config)

    @property
    def parameters_read(self) -> int:
        return self.parameter_count + self.vocab_size * self.width

    def fuse(self, states: Tensor) -> Tensor:
        """[..., E] the part of pairs that is made of the target's `states` [..., E]."""
        return states.to(device=self.device, dtype=self.dtype)

    def fed_back(self, states: Tensor) -> Tensor:
        """[..., E] what replaces the target's state in the next pair: a result's `states`."""
        return states

    def run(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        """Runs a plan of pairs."""
        assert plan.soft is not None, "a pair has a state"
        ops = choose_ops(self.device, self.dtype)
        token = ops.norm(self.embed(plan.tokens).flatten(0, 1), self.token_norm, self.epsilon)
        state = ops.norm(plan.soft.flatten(0, 1), self.state_norm, self.epsilon)
        pair = (token, state) if self.form.style == "nextn" else (state, token)
        step = self.layer_pass(plan, cache, ops)
        h = self.layer.forward(matmul(torch.cat(pair, -1), self.projection), step, 0)
        if self.form.normed:
            h = self._normed(h)
        return Hidden(plan, h.view(*plan.tokens.shape, -1), self._head)

    def _head(self, states: Tensor) -> Tensor:
        """Logits [M, V] of a result's states [M, E]."""
        normed = states if self.form.normed else self._normed(states)
        logits: Tensor = self.target.decoder.unembed(normed)  # type: ignore[attr-defined]
        return logits.to(self.device)

    def _normed(self, states: Tensor) -> Tensor:
        return choose_ops(self.device, self.dtype).norm(states, self.norm, self.epsilon)


def is_mtp(config: Mapping[str, Any], published: Mapping[str, Published]) -> bool:
    """Whether there are tensors of an MTP layer, of a supported layout or another."""
    return any(re.fullmatch(f"{_NEXTN}|{_OTHERS}", name) for name in published)


def read_layout(files: DraftFiles) -> MtpLayout:
    """The layer that drafts. Raises ModelError, with the names, for another layout, and for parts of another kind."""
    found = {
        style: sorted(int(match[1]) for name in files.published if (match := re.fullmatch(pattern, name)))
        for style, pattern in (("MiMo", _MIMO), ("nextn", _NEXTN))
    }
    style = next((style for style, indices in found.items() if indices), None)
    if style is None:
        names = sorted(name for name in files.published if re.fullmatch(_OTHERS, name))
        raise ModelError(
            f"the MTP layer of {files.name} has tensors {listed(names, 3)}, a layout that is not supported",
            "supported: model.mtp_layers.0.input_proj (MiMo-7B), model.layers.N.eh_proj with a dense layer",
        )
    layers = found[style]
    stem = f"model.{'mtp_layers' if style == 'MiMo' else 'layers'}.{layers[0]}."
    for part, what in _FOREIGN.items():
        if any(name.startswith(stem + part) for name in files.published):
            raise ModelError(
                f"the MTP layer of {files.name} has {stem}{part}*: {what} is not supported in an MTP layer",
                "leave draft=mtp out, or train a dense one: scripts/train_draft.py --kind mtp",
            )
    for key in MTP_COUNTS:
        if files.config.get(key) not in (None, len(layers)):
            raise ModelError(
                f"the config of {files.name} has {key}={files.config[key]}, and its files have {len(layers)}",
                "some copies leave layers of this kind out: fetch the files again",
            )
    whole = layer_shape(files, files.config, stem.removesuffix("."), files.published)
    return MtpLayout(style, stem, len(layers), replace(whole, layers=1, each=()))


def load(files: DraftFiles, target: LanguageModel) -> MtpModule:
    """Reads the MTP layer of a checkpoint, or of a folder with that layer alone, for `target`.

    Raises ModelError for what does not fit the target, and for tensors that are missing or unknown.
    """
    form = read_layout(files)
    if form.config.width != target.width:
        raise ModelError(
            f"{files.name} reads states of width {form.config.width}; those of {target.name} have {target.width}",
            "it was trained for another target",
        )
    check_head(files.name, target)
    with empty_weights():
        module = MtpModule(files, target, form)
    stem = re.escape(form.stem)
    fill(
        module,
        files,
        form.names,
        fused_rows=form.config.fused_rows,
        harmless=(rf"(?!{stem}).*", rf"{stem}(embed_tokens|shared_head\.head)\.weight", r".*rotary_emb\.inv_freq"),
    )
    module.rope = Rope.of(form.config)
    lines = [f"an MTP layer in {form.style} layout, {form.stem}*"]
    if form.layers > 1:
        lines.append(f"the first of {form.layers} MTP layers drafts every token")
    copies = {f"{form.stem}embed_tokens": target.decoder.embedding}
    if isinstance(head := getattr(getattr(target.decoder, "head", None), "weight", None), Tensor):
        copies[f"{form.stem}shared_head.head"] = head
    module.about = (*lines, *left_out(files, form.config, **copies))
    return module.eval()


KIND = register(
    DraftKind(
        "mtp",
        "A checkpoint's own layer for multi-token prediction (MTP)",
        is_mtp,
        load,
        {
            "MiMo: model.mtp_layers.0.*": "naive module in the tests",
            "nextn: model.layers.N.{enorm,hnorm,eh_proj,shared_head.norm}, dense": "naive module in the tests",
        },
    )
)
