"""Hydra's heads: each reads the target's state and the tokens drafted so far. Hydra++ refines the state with a layer.

Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding, https://arxiv.org/abs/2402.05109

    z_i = [h ; e(x_(t+1)) ; .. ; e(x_(t+i))],  g_i = R_i z_i + c_i + silu(W_i z_i + b_i), then Medusa's blocks
    logits_i = U_i g_i + u_i;  h the state of token t after the final norm
    prefix-mlp (Hydra++): h~ in place of h, h~_t = norm'(layer(h_1 .. h_t))_t, a layer of the target's kind

Heads that are not grounded read h alone, as Medusa's do. What a file holds decides, not its config; copies of the
target's embedding in it are not read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..decoder import Decoder
from ..decoder_config import DecoderConfig
from ..errors import ModelError, listed
from ..families.llama_like import NAMES, shape
from ..files.weights import Published
from ..loading import assemble
from ..model import LanguageModel
from ..plan import TargetStates
from .contracts import DraftFiles, DraftKind, DraftModule, register
from .parameters import left_out
from .token_heads import Head, HeadNames, counted, matrix, read_heads

_BLOCK = re.compile(r"(?P<stem>hydra_mlp\.(?P<head>\d+)\.(?P<block>\d+)\.linear)\.(?:weight|bias)")
_ENTRY = re.compile(r"(?P<stem>hydra_mlp\.(?P<head>\d+)\.(?P<block>\d+)\.res_connection)\.(?:weight|bias)")
# After dropout the index of the output layer differs.
_OUT = re.compile(r"(?P<stem>hydra_lm_head\.(?P<head>\d+)(?:\.\d+)?)\.(?:weight|bias)")
_PREFIX = "prefix_embeding_layer."  # spelt this way in the files
_LEFT_OUT = re.compile(rf"input_embed_fn\.weight|{re.escape(_PREFIX)}(?:embed_tokens\.weight|.*rotary_emb\.inv_freq)")


class Hydra(DraftModule):
    """J heads, and for Hydra++ the layer before them."""

    kind = "hydra"
    states = TargetStates(normed=True)

    def __init__(
        self, files: DraftFiles, target: LanguageModel, heads: list[Head], *, grounded: bool, prefix: Decoder | None
    ) -> None:
        super().__init__(files, target)
        self.heads = nn.ModuleList(heads)
        self.depth = len(heads)
        self.grounded = grounded  # whether a head's distribution depends on the draft
        self.shared = False
        self.prefix = prefix  # a stack of one layer, fed states in place of embeddings

    @property
    def parameters_read(self) -> int:
        """Parameters per head: the mean, with the prefix layer's parameters divided among the heads."""
        return self.parameter_count // len(self.heads)

    @property
    def with_cache(self) -> Any:
        return self.prefix

    def inputs(self, states: Tensor, path: Tensor) -> Tensor:
        """[B, K, Z]: a grounded head's input: states [B, E], then the tokens of `path` [B, K, D] down to a node."""
        batch, nodes = path.shape[:2]
        embedded = self.embed(path).to(states.dtype).flatten(2)
        return torch.cat((states[:, None].expand(batch, nodes, -1), embedded), -1)

    def grounded_logits(self, states: Tensor, path: Tensor) -> Tensor:
        """Logits, float32 [B, K, V], of the head for this length of `path` [B, K, D], from the states [B, E]."""
        return self.over_vocabulary(self.heads[path.shape[-1] - 1](self.inputs(states, path)))

    def logits(self, states: Tensor, heads: range) -> Tensor:
        """Logits, float32 [B, J, V], of heads that are not grounded, from the states [B, E]."""
        return self.over_vocabulary(torch.stack([self.heads[index](states) for index in heads], 1))


def _matches(config: Mapping[str, Any], published: Mapping[str, Published]) -> bool:
    return any(name.startswith(("hydra_mlp.", "hydra_lm_head.")) for name in published) or "hydra_head_arch" in config


def _load(files: DraftFiles, target: LanguageModel) -> Hydra:
    arch = files.config.get("hydra_head_arch", "mlp")
    if arch not in ("mlp", "prefix-mlp"):
        raise ModelError(
            f"{files.name}: Hydra heads of hydra_head_arch={arch!r} are not supported", "supported: mlp and prefix-mlp"
        )
    if offset := files.config.get("hidden_state_offset"):
        raise ModelError(
            f"{files.name}: Hydra heads with hidden_state_offset={offset} are not supported",
            "supported: hidden_state_offset=0, heads that read the target's last state",
        )
    heads, layer = _names(files)
    if arch == "prefix-mlp" and not layer:
        raise ModelError(
            f"the config of {files.name} says prefix-mlp, and the file has no {_PREFIX}*", "the file is not complete"
        )
    grounded = any(head.entry for head in heads)
    if grounded and not all(head.entry for head in heads):
        without = [str(at) for at, head in enumerate(heads) if not head.entry]
        raise ModelError(f"{files.name}: heads {listed(without)} lack res_connection, which the others have")
    inputs = [(at + 2) * target.width if grounded else target.width for at in range(len(heads))]
    prefix = _read_prefix(files, target, layer) if layer else None
    read = read_heads(files, target, heads, inputs=inputs)
    module = Hydra(files, target, read, grounded=grounded, prefix=prefix)
    kinds = f"{'' if grounded else 'not '}grounded" + (", after a layer of their own (Hydra++)" if prefix else "")
    copies = dict.fromkeys(("input_embed_fn", f"{_PREFIX}embed_tokens"), target.decoder.embedding)
    own = None if prefix is None else prefix.config
    module.about = (counted(files, heads, "hydra_num_heads"), kinds, *left_out(files, own, **copies))
    return module


def _names(files: DraftFiles) -> tuple[list[HeadNames], list[str]]:
    """Names of each head's tensors and of the prefix layer's. Raises ModelError for any other tensor."""
    heads: defaultdict[int, HeadNames] = defaultdict(HeadNames)
    layer: list[str] = []
    foreign: list[str] = []
    for name in sorted(files.published):
        if match := _BLOCK.fullmatch(name):
            heads[int(match["head"])].blocks[int(match["block"])] = match["stem"]
        elif match := _ENTRY.fullmatch(name):
            heads[int(match["head"])].entry = match["stem"]
        elif match := _OUT.fullmatch(name):
            heads[int(match["head"])].out = match["stem"]
        elif not _LEFT_OUT.fullmatch(name):
            (layer if name.startswith(_PREFIX) else foreign).append(name)
    if foreign:
        raise ModelError(
            f"{files.name} has tensors that Hydra heads do not have: {listed(foreign)}", "supported: mlp and prefix-mlp"
        )
    return [heads[at] for at in range(max(heads, default=-1) + 1)], layer


def _read_prefix(files: DraftFiles, target: LanguageModel, names: list[str]) -> Decoder:
    """The layer before the heads and its norm, of the target's shape. Raises ModelError where they do not fit."""
    config = _prefix_config(files, target, names)
    decoder = assemble.empty(config)
    tensors: dict[str, Tensor] = {
        "embed.weight": torch.zeros(1, config.width, dtype=target.dtype, device=target.device)
    }
    used: set[str] = set()
    for name, parameter in decoder.named_parameters():
        if name == "embed.weight":
            continue
        stems = NAMES[name.replace("layers.0", "layers.{i}")]
        sources = [_PREFIX + stem.replace("model.", "", 1).replace("{i}", "0") for stem in _tuple(stems)]
        used |= set(sources)
        read = files.read({source: source for source in sources}, target.dtype, target.device)
        rows = sum(len(read[source]) for source in sources)
        if (rows, *read[sources[0]].shape[1:]) != tuple(parameter.shape):
            raise ModelError(
                f"{files.name}: {sources[0]} is {list(read[sources[0]].shape)}, which does not fit {target.name}",
                "use the target that the heads were trained on",
            )
        parts = [read[source] for source in sources]
        tensors[name] = matrix(*parts) if parameter.dim() > 1 else torch.cat(parts)
    if foreign := [name for name in names if name not in used]:
        raise ModelError(f"{files.name}: the layer before the heads has unknown tensors: {listed(foreign)}")
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        setattr(decoder.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=False))
    decoder.head.weight = decoder.embed.weight
    return decoder


def _tuple(stems: str | tuple[str, ...]) -> tuple[str, ...]:
    return (stems,) if isinstance(stems, str) else stems


def _prefix_config(files: DraftFiles, target: LanguageModel, names: list[str]) -> DecoderConfig:
    """One layer of the target's shape with the biases that the file has; its embedding and head are not used."""
    own = getattr(target.decoder, "config", None)
    if not isinstance(own, DecoderConfig):
        own = shape(dict(target.config), "llama")
    if own.each or own.experts is not None or own.canvas or own.post_norms:
        raise ModelError(f"{files.name}: a prefix layer like those of {target.name} is not supported")
    ending = {name.rpartition("layers.0.")[2] for name in names}
    return replace(
        own,
        vocab=1,
        layers=1,
        tied=True,
        logit_cap=None,
        qkv_bias="self_attn.q_proj.bias" in ending,
        out_bias="self_attn.o_proj.bias" in ending,
        mlp_bias="mlp.down_proj.bias" in ending,
        qk_norm="self_attn.q_norm.weight" in ending,
    )


HYDRA = register(
    DraftKind(
        name="hydra",
        summary="Hydra and Hydra++: heads on the target's last state and the tokens drafted so far",
        matches=_matches,
        load=_load,
        published={
            "mlp: hydra_lm_head.pt, grounded or not": "golden/heads",
            "prefix-mlp (Hydra++): with prefix_embeding_layer.*": "golden/heads",
        },
    )
)
