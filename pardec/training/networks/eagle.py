"""EAGLE-3: one layer that reads pairs of a token's embedding and the target's state before it.

EAGLE-3: Scaling up Inference Acceleration via Training-Time Test, https://arxiv.org/abs/2503.01840

    c_t = fc([f^a ; f^b ; f^c]_t)
    g = c_t at step 0, the network's own output after that;  in = [norm_in(e(x)) ; norm_h(g)]
    a = g + Attn(in);  g' = a + MLP(norm_post(a));  q = softmax over the draft ids of head(norm(g'))

Training-time test: in step j the query at t is the pair (x_(t+1+j), g of step j - 1 at t); it sees the keys of step 0
up to t and its own of the steps 1 .. j, and predicts x_(t+2+j). Differs from the authors' training: the head may be the
target's; steps are added as the run proceeds; fc starts as a linear guess of the target's states, see `features`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pardec.models.draft_modules.contracts import DraftFiles
from pardec.models.draft_modules.eagle_files import read_layout
from pardec.models.draft_modules.eagle_taps import find_taps
from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel

from ..losses import Loss
from ..states import Batch, States
from .contracts import Network, Options, Target
from .features import Features
from .parts import Mlp, linear, matrix, repeat_heads, rms, rotary


def default_taps(layers: int) -> tuple[int, ...]:
    """The tapped layers: low, middle and high; the authors' choice for targets of 8 layers and more."""
    return (1, layers // 2 - 1, layers - 4) if layers >= 8 else (0, layers // 2 - 1, layers - 2)


class Eagle(Network):
    kind = "eagle"

    def __init__(self, target: Target, options: Options) -> None:
        super().__init__(target, options)
        shape, width = target.shape, target.model.width
        self.heads, self.kv_heads, self.head_dim = shape.heads, options.kv_heads or shape.kv_heads, shape.head_dim
        self.taps = options.taps or default_taps(target.model.layers)
        self.depths = options.unroll
        noise = torch.Generator().manual_seed(options.seed)
        rows, kv_rows = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.fc = Features(width, len(self.taps) * width, noise)
        self.q, self.k = matrix(rows, 2 * width, noise), matrix(kv_rows, 2 * width, noise)
        self.v, self.o = matrix(kv_rows, 2 * width, noise), matrix(width, rows, noise)
        self.mlp = Mlp(width, options.mlp_width or shape.mlp_width, noise)
        self.input_norm, self.hidden_norm = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.post_norm, self.norm = nn.Parameter(torch.ones(width)), nn.Parameter(target.norm.clone())
        self.head: nn.Parameter | None = None
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

    def _attend(self, tokens: Tensor, g: Tensor, step: int, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The layer at `step` for pairs of tokens [B, T] and states g [B, T, E]; its keys and values join `past`."""
        batch, width = tokens.shape
        eps = self.target.eps
        embedded = F.embedding(tokens, self.target.embedding)
        x = torch.cat((rms(embedded, self.input_norm, eps), rms(g, self.hidden_norm, eps)), -1)
        q, k, v = (linear(x, weight).view(batch, width, -1, self.head_dim) for weight in (self.q, self.k, self.v))
        positions = torch.arange(step, step + width, device=g.device)
        q = rotary(q, positions, self.target.theta).transpose(1, 2)
        past.append((repeat_heads(rotary(k, positions, self.target.theta), self.heads), repeat_heads(v, self.heads)))
        first_k, first_v = past[0]
        if step == 0:
            out = F.scaled_dot_product_attention(q, first_k, first_v, is_causal=True)
        else:
            q = q * self.head_dim**-0.5
            hidden = torch.ones(width, width, dtype=torch.bool, device=g.device).triu(1)
            scores = (q @ first_k.transpose(2, 3)).masked_fill_(hidden, -torch.inf)
            own = [(q * key).sum(-1, keepdim=True) for key, _ in past[1:]]
            shares = torch.cat((scores, *own), -1).softmax(-1)
            out = shares[..., :width] @ first_v
            for at, (_, value) in enumerate(past[1:]):
                out = out + shares[..., width + at, None] * value
        a = g + self.drop(linear(out.transpose(1, 2).reshape(batch, width, -1), self.o))
        return a + self.drop(self.mlp.forward(rms(a, self.post_norm, eps)))

    def _features(self, batch: Batch) -> Tensor:
        """c_t [B, W - 1, E]."""
        features: Tensor = self.fc(batch.taps[:, :-1].flatten(2).to(self.compute))
        return self.drop(features)

    def _logits(self, g: Tensor, head: Tensor) -> Tensor:
        return linear(rms(g, self.norm, self.target.eps), head)

    def _own_logits(self, states: Tensor) -> Tensor:
        assert self.head is not None
        return linear(states, self.head)

    def _unrolled(self, batch: Batch, steps: int) -> Iterator[Tensor]:
        """The network's outputs [B, T, E] of each step, T = W - 1."""
        g = self._features(batch)
        past: list[tuple[Tensor, Tensor]] = []
        for step in range(steps):
            tokens = F.pad(batch.ids[:, 1 + step :], (0, step))
            g = self._attend(tokens, g, step, past)
            yield g

    def loss(self, batch: Batch, divergence: Loss, generator: torch.Generator) -> tuple[Tensor, list[float]]:
        counted = self.weights(batch, generator)
        head = self.draft_head().to(self.compute) if self.head is None else self._own_logits
        total, rates = torch.zeros((), device=self.device), []
        for step, g in enumerate(self._unrolled(batch, self._steps())):
            width = batch.width - 2 - step  # g at t predicts the token after t + 1 + step
            chosen = counted[:, 2 + step :]
            normed, best = batch.normed[:, 1 + step : 1 + step + width], batch.best[:, 1 + step : 1 + step + width]
            states = rms(g[:, :width][chosen], self.norm, self.target.eps)
            weight = self.options.decay**step
            part, rate = self.compare(states, head, normed[chosen], best[chosen], divergence, weight)
            total = total + part
            rates.append(rate)
        return total, rates

    def _steps(self) -> int:
        """The number of unrolled steps: one at the beginning of a run, all in its last part."""
        begin, end = self.options.ramp
        share = (self.progress - begin) / max(end - begin, 1e-9)
        return min(self.depths, 1 + int(max(0.0, share) * (self.depths - 1)))

    @torch.no_grad()
    def chain(self, batch: Batch, length: int) -> Tensor:
        head = self.draft_head().to(self.compute) if self.head is None else self.head
        g, tokens, drafts = self._features(batch), batch.ids[:, 1:], []
        past: list[tuple[Tensor, Tensor]] = []
        for step in range(length):
            g = self._attend(tokens, g, step, past)
            tokens = self._logits(g, head).argmax(-1)
            tokens = tokens if self.ids is None else self.ids[tokens]
            drafts.append(tokens)
        return F.pad(torch.stack(drafts, -1), (0, 0, 0, 1), value=-1)

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        width = self.target.model.width
        tensors = {
            "fc.weight": self.fc.exported,
            "midlayer.input_layernorm.weight": self.input_norm,
            "midlayer.hidden_norm.weight": self.hidden_norm,
            "midlayer.post_attention_layernorm.weight": self.post_norm,
            "norm.weight": self.norm,
        }
        parts = {"q_proj": self.q, "k_proj": self.k, "v_proj": self.v, "o_proj": self.o}
        tensors |= {f"midlayer.self_attn.{name}.weight": value for name, value in parts.items()}
        tensors |= self.mlp.tensors("midlayer.")
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
