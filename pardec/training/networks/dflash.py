"""DFlash: a small block-diffusion model that fills a block of masks at once, given the target's states.

DFlash: Block Diffusion for Flash Speculative Decoding, https://arxiv.org/abs/2602.06036

    c_t = norm(fc([f^a ; f^b ; f^c]_t)): keys and values of the context in every layer, for positions before the anchor
    queries: [anchor, mask x (B - 1)], which see the context and one another;  row k predicts the token k after it

The anchor is the token that the target has just chosen: the target's state at its position is not known. Embedding and
head are the target's. Training: anchors are drawn from the answers; the loss of row k counts exp(-(k - 1) / gamma),
gamma = block / 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pardec.models.draft_modules.contracts import DraftFiles
from pardec.models.draft_modules.dflash_files import read_layout
from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel

from ..losses import Loss
from ..states import Batch, States
from .contracts import Network, Options, Target
from .eagle import default_taps
from .features import Features
from .parts import Mlp, attention_tensors, copy_attention, linear, matrix, repeat_heads, rms, rotary

_ANCHORS = 0.25  # largest share of the texts' tokens


class BlockLayer(nn.Module):
    """Qwen3's layer whose blocks also attend to keys and values of the context."""

    def __init__(self, target: Target, options: Options, generator: torch.Generator) -> None:
        super().__init__()
        shape, width = target.shape, target.model.width
        self.heads, self.head_dim = shape.heads, shape.head_dim
        self.eps, self.theta = target.eps, target.theta
        rows, kv_rows = shape.heads * shape.head_dim, (options.kv_heads or shape.kv_heads) * shape.head_dim
        self.q, self.o = matrix(rows, width, generator), matrix(width, rows, generator)
        self.k, self.v = matrix(kv_rows, width, generator), matrix(kv_rows, width, generator)
        self.q_norm, self.k_norm = nn.Parameter(torch.ones(self.head_dim)), nn.Parameter(torch.ones(self.head_dim))
        self.input_norm, self.post_norm = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.mlp = Mlp(width, options.mlp_width or shape.mlp_width, generator)
        self.dropout = options.dropout

    def _heads(self, x: Tensor, weight: Tensor) -> Tensor:
        """x @ weight.T as heads [B, T, H, D]."""
        return linear(x, weight).view(*x.shape[:2], -1, self.head_dim)

    def drop(self, x: Tensor) -> Tensor:
        """x, with dropout in training."""
        return F.dropout(x, self.dropout, torch.is_grad_enabled()) if self.dropout else x

    def keys(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, T, D] of states [B, T, E]."""
        k, v = (self._heads(x, weight) for weight in (self.k, self.v))
        k = rotary(rms(k, self.k_norm, self.eps), positions, self.theta)
        return repeat_heads(k, self.heads), repeat_heads(v, self.heads)

    def forward(self, h: Tensor, positions: Tensor, context: Tensor, visible: Tensor) -> Tensor:
        """Blocks h [B, A, S, E] at `positions` [B, A, S]; block a sees `visible` [B, A, T] of a context [B, T, E]."""
        batch, anchors, size, _ = h.shape
        flat = positions.flatten(1)
        x = rms(h, self.input_norm, self.eps).flatten(1, 2)
        q = rotary(rms(self._heads(x, self.q), self.q_norm, self.eps), flat, self.theta)
        q = q.transpose(1, 2) * self.head_dim**-0.5  # [B, H, A * S, D]
        own_k, own_v = self.keys(x, flat)
        k, v = self.keys(context, torch.arange(context.shape[1], device=h.device))
        hidden = ~visible.repeat_interleave(size, 1)[:, None]
        scores = (q @ k.transpose(2, 3)).masked_fill_(hidden, -torch.inf)
        blocks = (batch, self.heads, anchors, size, self.head_dim)
        own = q.view(blocks) @ own_k.reshape(blocks).transpose(3, 4)  # [B, H, A, S, S]
        shares = torch.cat((scores, own.flatten(2, 3)), -1).softmax(-1)
        width = context.shape[1]
        mixed = (shares[..., width:].view(batch, self.heads, anchors, size, size) @ own_v.reshape(blocks)).flatten(2, 3)
        out = (shares[..., :width] @ v + mixed).transpose(1, 2).flatten(2)
        h = h + self.drop(linear(out, self.o).view(h.shape))
        return h + self.drop(self.mlp.forward(rms(h, self.post_norm, self.eps)))

    def copy(self, layer: dict[str, Tensor]) -> None:
        """Copies the weights of a layer of the target."""
        self.mlp.copy(layer)
        with torch.no_grad():
            copy_attention(self, layer)
            self.input_norm.copy_(layer["input_layernorm"])
            self.post_norm.copy_(layer["post_attention_layernorm"])

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """The weights under their published names."""
        return {
            **attention_tensors(self, prefix),
            f"{prefix}self_attn.q_norm.weight": self.q_norm,
            f"{prefix}self_attn.k_norm.weight": self.k_norm,
            **self.mlp.tensors(prefix),
            f"{prefix}input_layernorm.weight": self.input_norm,
            f"{prefix}post_attention_layernorm.weight": self.post_norm,
        }


class DFlash(Network):
    kind = "dflash"

    def __init__(self, target: Target, options: Options) -> None:
        super().__init__(target, options)
        width = target.model.width
        self.taps = options.taps or default_taps(target.model.layers)
        self.depths = options.block - 1
        self.mask_id = 0 if options.mask_id is None else options.mask_id
        noise = torch.Generator().manual_seed(options.seed)
        self.fc = Features(width, len(self.taps) * width, noise)
        self.hidden_norm, self.norm = nn.Parameter(torch.ones(width)), nn.Parameter(target.norm.clone())
        self.layers = nn.ModuleList(BlockLayer(target, options, noise) for _ in range(options.layers))

    def prepare(self, states: States) -> None:
        """Initializes the context as the best linear guess of the target's next state, the layers from the target's."""
        start = self.options.start
        self.fc.fit(states, self.target.embedding, self.target.norm, 0, start != "random")
        with torch.no_grad():
            self.norm.mul_(0.5)
        for at, layer in enumerate(self.layers):
            assert isinstance(layer, BlockLayer)
            if start == "target":
                layer.copy(self.target.layer(self.target.model.layers - len(self.layers) + at))
            with torch.no_grad():
                layer.o.mul_(0.5)
                layer.mlp.down.mul_(0.5)

    def _blocks(self, batch: Batch, anchors: Tensor) -> Tensor:
        """States after the final norm [B, A, S, E] of blocks that begin at `anchors` [B, A]."""
        context = self.fc(batch.taps.flatten(2).to(self.compute))
        context = self.drop(rms(context, self.hidden_norm, self.target.eps))
        positions = anchors[..., None] + torch.arange(self.options.block, device=self.device)
        tokens = torch.full_like(positions, self.mask_id)
        tokens[..., 0] = batch.ids.gather(1, anchors)
        h = F.embedding(tokens, self.target.stored).to(self.compute)
        visible = torch.arange(batch.width, device=self.device) < anchors[..., None]
        for layer in self.layers:
            h = layer(h, positions, context, visible)
        return rms(h, self.norm, self.target.eps)

    def loss(self, batch: Batch, divergence: Loss, generator: torch.Generator) -> tuple[Tensor, list[float]]:
        size, depths = self.options.block, self.depths
        count = max(1, int(batch.width * _ANCHORS))
        # Anchors stand from the answer's first token to the last but one; positions in between are drawn at random.
        room = (batch.lengths - 1 - batch.begins).clamp(min=1)
        shares = torch.rand(len(room), count, generator=generator).to(self.device)
        anchors = batch.begins[:, None] + (shares * room[:, None]).long()
        states = self._blocks(batch, anchors)
        head = self.draft_head().to(self.compute)
        total, rates = torch.zeros((), device=self.device), []
        gamma = size / 2
        scale = sum(2.718281828 ** (-k / gamma) for k in range(depths))
        for k in range(1, size):
            weight = 2.718281828 ** (-(k - 1) / gamma) / scale
            part, rate = self.compare_after(batch, anchors, k, states[:, :, k], head, divergence, weight)
            total = total + part
            rates.append(rate)
        return total, rates

    @torch.no_grad()
    def chain(self, batch: Batch, length: int) -> Tensor:
        head = self.draft_head().to(self.compute)
        anchors = torch.arange(1, batch.width, device=self.device).expand(len(batch.ids), -1)
        drafts = []
        for part in torch.split(anchors, 64, 1):
            states = self._blocks(batch, part)[:, :, 1 : 1 + length]
            drafts.append(linear(states, head).argmax(-1))
        ids = torch.cat(drafts, 1)
        ids = ids if self.ids is None else self.ids[ids]
        return F.pad(ids, (0, length - ids.shape[-1], 0, 1), value=-1)

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        width = self.target.model.width
        tensors: dict[str, Tensor] = {
            "fc.weight": self.fc.exported,
            "hidden_norm.weight": self.hidden_norm,
            "norm.weight": self.norm,
        }
        for at, layer in enumerate(self.layers):
            assert isinstance(layer, BlockLayer)
            tensors |= layer.tensors(f"layers.{at}.")
        config = self.decoder_config(
            architectures=["DFlashDraftModel"],
            model_type="qwen3",
            hidden_size=width,
            intermediate_size=len(tensors["layers.0.mlp.gate_proj.weight"]),
            num_hidden_layers=len(self.layers),
            block_size=self.options.block,
            num_target_layers=self.target.model.layers,
            dflash_config={"mask_token_id": self.mask_id, "target_layer_ids": list(self.taps)},
            tie_word_embeddings=True,
        )
        if self.ids is not None:
            config["draft_vocab_size"] = len(self.ids)
        return config, tensors | self.id_tensors()

    @classmethod
    def read_shape(cls, files: DraftFiles, target: LanguageModel) -> dict[str, Any]:
        form = read_layout(files, target.layers)
        plain = form.style == "DFlash" and not form.from_anchor and not any(form.causal) and form.cap is None
        if not plain or form.scale != 1 or form.multiplier != 1:
            raise ModelError(
                f"{files.name} is a {form.style} whose blocks or logits differ from the paper's: it cannot be trained"
                " here",
                "train a DFlash whose queries attend in both directions, and whose logits have no scale and no cap",
            )
        return {
            "layers": form.config.layers,
            "mlp_width": form.config.mlp_width,
            "kv_heads": form.config.kv_heads,
            "taps": form.taps,
            "block": form.block,
            "mask_id": form.mask,
        }

    def load_weights(self, tensors: Mapping[str, Tensor], states: States) -> None:
        super().load_weights(tensors, states)
        self.fc.fit(states, self.target.embedding, self.target.norm, 0, linear=False)
        self.fc.load_exported(tensors["fc.weight"])
