"""Training functions of the tokenizer of several scales: its initialization, and codes with all sums.

Visual Autoregressive Modeling: Scalable Image Generation via Next-Scale Prediction, https://arxiv.org/abs/2404.02905
Letters: B images, C numbers of a code's vector, n the last scale's side, n_s codes of scale s.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pardec.models.images.kl import KL
from pardec.models.scales.contracts import Scales
from pardec.models.scales.tokenizer import MultiScaleVQ, TokenizerShape

SHAPE: dict[str, object] = {
    "vocab_size": 512,
    "z_channels": 16,
    "ch": 32,
    "ch_mult": (1, 1, 2, 2),
    "num_res_blocks": 1,
    "share_quant_resi": 4,
}
SIDES = (1, 2, 3, 4, 5, 6)


def tokenizer(changes: dict[str, object]) -> MultiScaleVQ:
    """An untrained one, with some sizes changed; `patch_nums` are the sides."""
    sizes = {**SHAPE, "patch_nums": SIDES, **changes}
    scales = Scales(tuple(sizes.pop("patch_nums")))  # type: ignore[call-overload]
    return MultiScaleVQ(TokenizerShape(**sizes), scales)  # type: ignore[arg-type]


def features(vq: MultiScaleVQ, pixels: Tensor) -> Tensor:
    """The features to quantize, float32 [B, C, n, n], from pixels [B, 3, H, W]."""
    assert vq.encoder is not None, "a tokenizer with its encoder"
    assert vq.quant_conv is not None
    out: Tensor = vq.quant_conv(vq.encoder(pixels)).float()
    return out


def nearest(vq: MultiScaleVQ, residual: Tensor) -> Tensor:
    """The codes [B, n_s] of pooled residuals [B, n_s, C]."""
    rows = vq.codebook.weight
    return (rows.square().sum(1) - 2 * residual @ rows.T).argmin(-1)


def quantize(vq: MultiScaleVQ, goal: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Codes, sums so far and pooled residuals of features [B, C, n, n], scale by scale; sums carry gradients."""
    codes, sums, pools = [], [], []
    goal, total = goal.detach(), torch.zeros_like(goal)
    for scale in range(len(vq.scales)):
        with torch.no_grad():
            pools.append(vq.map_of(goal - total, scale))
            codes.append(nearest(vq, pools[-1]))
        total = vq.add(total, codes[-1], scale)
        sums.append(total)
    return codes, sums, pools


@torch.no_grad()
def start_from(vq: MultiScaleVQ, kl: KL) -> None:
    """Copies the network of an autoencoder of the same levels, whose scaled means become the features.

    What an autoencoder lacks begins by adding nothing: attention of the decoder, and the quantizer's convolutions.
    """
    state = {key: value.float() for key, value in kl.network.state_dict().items()}
    size = vq.channels
    mix, shift = state.pop("quant_conv.weight")[:size, :, 0, 0], state.pop("quant_conv.bias")[:size]
    weight, bias = state["encoder.conv_out.weight"], state["encoder.conv_out.bias"]
    state["encoder.conv_out.weight"] = kl.scale * torch.einsum("om,mihw->oihw", mix, weight)
    state["encoder.conv_out.bias"] = kl.scale * (mix @ bias + shift)
    centre = torch.zeros(size, size, 3, 3)
    centre[:, :, 1, 1] = state.pop("post_quant_conv.weight")[:, :, 0, 0] / kl.scale
    state["post_quant_conv.weight"] = centre
    same = torch.zeros(size, size, 3, 3)
    same[:, :, 1, 1] = torch.eye(size)
    state |= {"quant_conv.weight": same, "quant_conv.bias": torch.zeros(size)}
    for name, value in vq.state_dict().items():
        if "up_blocks" in name and ".to_out." in name:
            state[name] = torch.zeros_like(value)
    missing, unexpected = vq.load_state_dict(state, strict=False)
    own = ("codebook.", "convolutions.")
    other = [name for name in missing if not name.startswith(own) and ".attentions." not in name]
    if other or unexpected:
        raise ValueError(f"not an autoencoder of these levels: {[*other, *unexpected][:3]}")
    for convolution in vq.convolutions:
        torch.nn.init.dirac_(convolution.weight)  # type: ignore[arg-type]
        torch.nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
