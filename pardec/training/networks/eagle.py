"""EAGLE-3: one layer that reads pairs of a token's embedding and the target's state before it.

EAGLE-3: Scaling up Inference Acceleration via Training-Time Test, https://arxiv.org/abs/2503.01840

    c_t = fc([f^a ; f^b ; f^c]_t)
    g = c_t at step 0, the network's own output after that;  in = [norm_in(e(x)) ; norm_h(g)]
    a = g + Attn(in);  g' = a + MLP(norm_post(a));  q = softmax over the draft ids of head(norm(g'))

Steps are unrolled as `pairs` has it. Differs from the authors' training: the head may be the target's; fc starts as a
linear guess of the target's states, see `features`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pardec.models.draft_modules.contracts import DraftFiles
from pardec.models.draft_modules.eagle_files import read_layout
from pardec.models.draft_modules.eagle_taps import find_taps
from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel

from ..states import Batch, States
from .contracts import Options, Target
from .features import Features
from .pairs import PairNetwork
from .parts import attention_tensors, rms


def default_taps(layers: int) -> tuple[int, ...]:
    """The tapped layers: low, middle and high; the authors' choice for targets of 8 layers and more."""
    return (1, layers // 2 - 1, layers - 4) if layers >= 8 else (0, layers // 2 - 1, layers - 2)


class Eagle(PairNetwork):
    kind = "eagle"

    def __init__(self, target: Target, options: Options) -> None:
        super().__init__(target, options)
        width = target.model.width
        self.taps = options.taps or default_taps(target.model.layers)
        noise = torch.Generator().manual_seed(options.seed)
        self.fc = Features(width, len(self.taps) * width, noise)
        self.make_layer(2 * width, noise)
        self.input_norm, self.hidden_norm = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.post_norm, self.norm = nn.Parameter(torch.ones(width)), nn.Parameter(target.norm.clone())
        self._own_head()

    def draft_ids(self, ids: Tensor) -> None:
        super().draft_ids(ids)
        self._own_head()

    def _own_head(self) -> None:
        if not self.options.tied:
            self.head = nn.Parameter(self.draft_head().float())

    def prepare(self, states: States) -> None:
        start, width = self.options.start, self.target.model.width
        self.fc.fit(states, self.target.embedding, self.target.norm, 1, start != "random")
        if start == "random":
            with torch.no_grad():
                self.norm.mul_(0.3)
            return
        layer = self.target.layer(-1)
        if start == "target":
            self.mlp.copy(layer)
        with torch.no_grad():
            self.norm.mul_(0.7)
            if start == "linear":
                self.o.zero_()
                self.mlp.down.zero_()
                return
            for own, name in ((self.q, "q_proj"), (self.k, "k_proj"), (self.v, "v_proj")):
                if own[:, width:].shape == layer[name].shape:
                    own[:, width:] = layer[name]
            self.o.copy_(layer["o_proj"])
            self.hidden_norm.copy_(layer["input_layernorm"])
            self.post_norm.copy_(layer["post_attention_layernorm"])

    @property
    def _table(self) -> Tensor:
        return self.target.stored

    def _features(self, batch: Batch) -> Tensor:
        """[B, W - 1, E]: the fused target states of all tokens but the last."""
        features: Tensor = self.fc(batch.taps[:, :-1].flatten(2).to(self.compute))
        return self.drop(features)

    def _enter(self, embedded: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        eps = self.target.eps
        return g, torch.cat((rms(embedded, self.input_norm, eps), rms(g, self.hidden_norm, eps)), -1)

    def _read(self, g: Tensor) -> Tensor:
        return rms(g, self.norm, self.target.eps)

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        width = self.target.model.width
        tensors = {
            "fc.weight": self.fc.exported,
            "midlayer.input_layernorm.weight": self.input_norm,
            "midlayer.hidden_norm.weight": self.hidden_norm,
            "midlayer.post_attention_layernorm.weight": self.post_norm,
            "norm.weight": self.norm,
        }
        tensors |= attention_tensors(self, "midlayer.") | self.mlp.tensors("midlayer.")
        config = self.decoder_config(
            architectures=["LlamaForCausalLMEagle3"],
            hidden_size=width,
            intermediate_size=len(self.mlp.gate),
            draft_vocab_size=len(self.target.head if self.ids is None else self.ids),
            tie_word_embeddings=self.head is None,
            eagle_config={"eagle_aux_hidden_state_layer_ids": list(self.taps), "use_aux_hidden_state": True},
        )
        if self.head is not None:
            tensors["lm_head.weight"] = self.head
        return config, tensors | self.id_tensors()

    @classmethod
    def read_shape(cls, files: DraftFiles, target: LanguageModel) -> dict[str, Any]:
        form = read_layout(files)
        plain = form.version == "3" and form.config.layers == 1 and form.norm_head
        if not plain or form.norm_residual or form.norm_inputs or form.norm_output:
            raise ModelError(
                f"{files.name} is an EAGLE-{form.version} of {form.config.layers} layer(s) in {form.style} layout,"
                " which cannot be trained here",
                "train an EAGLE-3 of one layer with the norms of the paper and no others",
            )
        return {
            "layers": 1,
            "mlp_width": form.config.mlp_width,
            "kv_heads": form.config.kv_heads,
            "taps": find_taps(files.config, target.layers).layers,
            "tied": form.tied,
        }

    def load_weights(self, tensors: Mapping[str, Tensor], states: States) -> None:
        super().load_weights(tensors, states)
        self.fc.fit(states, self.target.embedding, self.target.norm, 1, linear=False)
        self.fc.load_exported(tensors["fc.weight"])
