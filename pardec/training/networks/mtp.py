"""An MTP layer: one decoder layer that reads pairs of a token and the target's state before it.

DeepSeek-V3 Technical Report, https://arxiv.org/abs/2412.19437 (section 2.2)

    u_t = W [norm_e(e(x_(t+1))); norm_h(g_t)];  g' = norm(layer(u));  q = softmax(head g')
    g = the target's normed state at step 0, g' of the step before after that

Steps are unrolled as `pairs` has it. The layer starts as the target's last one, and W as the sum of both inputs.
Differs from the report: the target is frozen, the loss compares with its distributions (fkl by default), and one layer
learns every step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pardec.models.draft_modules.contracts import DraftFiles
from pardec.models.draft_modules.mtp import read_layout
from pardec.models.errors import ModelError, SpecError
from pardec.models.model import LanguageModel

from ..states import Batch, States
from .contracts import Options, Target
from .pairs import PairNetwork
from .parts import attention_tensors, copy_attention, linear, rms


class MtpLayer(PairNetwork):
    kind = "mtp"

    def __init__(self, target: Target, options: Options) -> None:
        super().__init__(target, options)
        width, noise = target.model.width, torch.Generator().manual_seed(options.seed)
        self.taps = options.taps or ()
        both = torch.cat((torch.eye(width), torch.eye(width)), 1)
        self.projection = nn.Parameter(both + torch.randn(both.shape, generator=noise) * 0.02)
        self.make_layer(width, noise)
        self.token_norm, self.state_norm = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.attn_norm, self.post_norm = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.norm = nn.Parameter(target.norm.clone())

    def draft_ids(self, ids: Tensor) -> None:
        raise SpecError("mtp drafts with the target's whole head", "leave out --vocab")

    def prepare(self, states: States) -> None:
        if self.options.start == "random":
            return
        layer = self.target.layer(-1)
        self.mlp.copy(layer)
        with torch.no_grad():
            copy_attention(self, layer)
            self.attn_norm.copy_(layer["input_layernorm"])
            self.post_norm.copy_(layer["post_attention_layernorm"])

    def _features(self, batch: Batch) -> Tensor:
        return self.drop(batch.normed[:, :-1].to(self.compute))

    def _enter(self, embedded: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        eps = self.target.eps
        pair = torch.cat((rms(embedded, self.token_norm, eps), rms(g, self.state_norm, eps)), -1)
        u = linear(pair, self.projection)
        return u, rms(u, self.attn_norm, eps)

    def _fed_back(self, z: Tensor) -> Tensor:
        return rms(z, self.norm, self.target.eps)

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        model = self.target.model
        stem = f"model.layers.{model.layers}."
        own = {
            "enorm": self.token_norm,
            "hnorm": self.state_norm,
            "eh_proj": self.projection,
            "shared_head.norm": self.norm,
            "input_layernorm": self.attn_norm,
            "post_attention_layernorm": self.post_norm,
        }
        config = self.decoder_config(
            architectures=["LlamaForCausalLM"],
            num_hidden_layers=model.layers,
            num_nextn_predict_layers=1,
            hidden_size=model.width,
            intermediate_size=len(self.mlp.gate),
            tie_word_embeddings=False,
        )
        tensors: dict[str, Tensor] = {f"{stem}{name}.weight": value for name, value in own.items()}
        return config, tensors | attention_tensors(self, stem) | self.mlp.tensors(stem)

    @classmethod
    def read_shape(cls, files: DraftFiles, target: LanguageModel) -> dict[str, Any]:
        form = read_layout(files)
        if form.style != "nextn":
            raise ModelError(
                f"{files.name} is an MTP layer in {form.style} layout, which cannot be trained here",
                "train one from the target: leave --init out",
            )
        return {"layers": 1, "mlp_width": form.config.mlp_width, "kv_heads": form.config.kv_heads}
