"""Logit terms that depend on the previous token: DSpark's Markov head and DFlash 2's selector.

DSpark, https://arxiv.org/abs/2607.05147
DFlash 2, https://github.com/z-lab/dflash (`DFlash2DraftModel`)

    e = W1[token];  h the state of the position's query
    vanilla:  bias = W2 e
    gated:    bias = W2 (g e),  g = sigmoid(G [h; e] + b)
    rnn:      (g, c, o) = J [s; e; h] + b;  s' = sigmoid(g) s + (1 - sigmoid(g)) tanh(c);  bias = W2 tanh(o)

    selector: bias_b = <W1[token] * H h, W2[b]> of the K likeliest ids b there;  the others are not drafted

s is 0 before the block and is handed on along the drafted path, so that siblings have one each.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..kernels.matmul import matmul


class Transition(nn.Module):
    """The Markov head of one type."""

    def __init__(self, kind: str, *, ids: int, drafted: int, rank: int, width: int) -> None:
        """A head with biases of `drafted` ids after each of `ids` tokens."""
        super().__init__()
        self.kind, self.rank = kind, rank
        self.table = nn.Parameter(torch.empty(ids, rank))
        self.output = nn.Parameter(torch.empty(drafted, rank))
        if kind == "gated":
            self.gate = nn.Parameter(torch.empty(rank, width + rank))
            self.gate_bias = nn.Parameter(torch.empty(rank))
        if kind == "rnn":
            self.joint = nn.Parameter(torch.empty(3 * rank, 2 * rank + width))
            self.joint_bias = nn.Parameter(torch.empty(3 * rank))

    @property
    def looked_up(self) -> tuple[Tensor, ...]:
        """Parameters of which a forward reads only some rows."""
        return (self.table,)

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., r] embeddings of ids [...]; ids in the padding of the target's table get the last embedding."""
        return nn.functional.embedding(tokens.clamp(0, len(self.table) - 1), self.table)

    def scores(
        self, raw: Tensor, embedded: Tensor, states: Tensor, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [..., Vd] after the tokens, and the children's `memory`; `raw` [..., Vd] are logits without bias."""
        bias, memory = self(embedded, states, memory)
        return raw + bias, memory

    def forward(self, embedded: Tensor, states: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Biases [..., Vd], and the `memory` [..., r] for the children.

        Args:
            embedded: [..., r] of the tokens before.
            states: [..., E] of the positions' queries.
        """
        if self.kind == "gated":
            gate = matmul(torch.cat((states, embedded), -1), self.gate, self.gate_bias).sigmoid()
            embedded = gate * embedded
        elif self.kind == "rnn":
            memory = torch.zeros_like(embedded) if memory is None else memory
            parts = matmul(torch.cat((memory, embedded, states), -1), self.joint, self.joint_bias).chunk(3, -1)
            gate = parts[0].sigmoid()
            memory = gate * memory + (1 - gate) * parts[1].tanh()
            embedded = parts[2].tanh()
        return matmul(embedded, self.output), memory


class Selector(nn.Module):
    """DFlash 2's scores of pairs of tokens, over the likeliest ids of each position."""

    def __init__(self, *, ids: int, rank: int, width: int, count: int) -> None:
        """A selector over the `count` likeliest of `ids` at each position."""
        super().__init__()
        self.rank, self.count = rank, min(count, ids)
        self.table, self.output = nn.Parameter(torch.empty(ids, rank)), nn.Parameter(torch.empty(ids, rank))
        self.projection = nn.Parameter(torch.empty(rank, width))

    @property
    def looked_up(self) -> tuple[Tensor, ...]:
        """Parameters of which a forward reads only some rows."""
        return self.table, self.output

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., r] embeddings of ids [...]; ids in the padding of the target's table get the last embedding."""
        return nn.functional.embedding(tokens.clamp(0, len(self.table) - 1), self.table)

    def scores(
        self, raw: Tensor, embedded: Tensor, states: Tensor, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [B, K, V] after tokens `embedded` [B, K, r]; -inf for ids that are not drafted.

        Args:
            raw: [B, 1, V] or [B, K, V], which decide on the ids.
            states: [B, K, E] of the positions' queries.
        """
        unary, ids = raw.topk(self.count)
        successors = nn.functional.embedding(ids.clamp(max=len(self.output) - 1), self.output)
        pairs = embedded * matmul(states, self.projection)
        scores = unary + torch.einsum("bkr,bkcr->bkc", pairs, successors.expand(*pairs.shape[:2], -1, -1))
        wide = (*pairs.shape[:2], -1)
        logits = scores.new_full((*pairs.shape[:2], raw.shape[-1]), -torch.inf)
        return logits.scatter_(-1, ids.expand(wide), scores), None
