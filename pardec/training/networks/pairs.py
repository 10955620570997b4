"""Networks over pairs of a token and the state before it, trained on their own outputs as well: `eagle` and `mtp`.

EAGLE-3: Scaling up Inference Acceleration via Training-Time Test, https://arxiv.org/abs/2503.01840

Training-time test: in step j the query at t is the pair (x_(t+1+j), g), g the target's state in step 0 and then the
network's own of step j - 1 at t; it sees the keys of step 0 up to t and its own of the steps 1 .. j, and predicts
x_(t+2+j). Differs from the authors' training: steps are added as the run proceeds.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..losses import Loss
from ..states import Batch
from .contracts import AttentionNetwork
from .parts import Mlp, linear, rms


class PairNetwork(AttentionNetwork):
    """A decoder layer over pairs. A subclass defines its inputs, the states of the next step, and the head's inputs."""

    head: nn.Parameter | None  # None: rows of the target's
    post_norm: nn.Parameter

    def make_layer(self, inputs: int, noise: torch.Generator) -> None:
        """Random weights of the layer, whose attention reads states of width `inputs`."""
        self.register_parameter("head", None)
        self.depths = self.options.unroll
        self.make_attention(inputs, noise)
        self.mlp = Mlp(self.target.model.width, self.options.mlp_width or self.target.shape.mlp_width, noise)

    def _features(self, batch: Batch) -> Tensor:
        """[B, W - 1, E] the target's states, as the first step's pairs have them."""
        raise NotImplementedError

    @property
    def _table(self) -> Tensor:
        """[V, E] the embeddings of pairs."""
        return self.target.embedding

    def _enter(self, embedded: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream [B, T, E] and attention's inputs [B, T, I] from pairs (embedded, g), both [B, T, E]."""
        raise NotImplementedError

    def _fed_back(self, z: Tensor) -> Tensor:
        """[B, T, E] the states of the next step's pairs, from the layer's outputs [B, T, E]."""
        return z

    def _read(self, g: Tensor) -> Tensor:
        """[..., E] the head's inputs, from the next step's states `g` [..., E]."""
        return g

    def _attend(self, tokens: Tensor, g: Tensor, step: int, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        """[B, T, E] the next step's states, from tokens [B, T] and states g [B, T, E]; appends K and V to `past`."""
        batch, width = tokens.shape
        h, x = self._enter(F.embedding(tokens, self._table), g)
        q, k, v = self.project(x, torch.arange(step, step + width, device=g.device))
        past.append((k, v))
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
        a = h + self.drop(linear(out.transpose(1, 2).reshape(batch, width, -1), self.o))
        return self._fed_back(a + self.drop(self.mlp.forward(rms(a, self.post_norm, self.target.eps))))

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
            states = self._read(g[:, :width][chosen])
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
            tokens = linear(self._read(g), head).argmax(-1)
            tokens = tokens if self.ids is None else self.ids[tokens]
            drafts.append(tokens)
        return F.pad(torch.stack(drafts, -1), (0, 0, 0, 1), value=-1)
