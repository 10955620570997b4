"""Plain DFlash, DFlash 2 and DSpark on tensors under published names: no cache, no batch, one query at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def rotated(x: Tensor, position: int, theta: float) -> Tensor:
    """x [D] rotated for one position; angles are in float32, as everywhere in the package."""
    half = len(x) // 2
    frequency = 1.0 / (theta ** (torch.arange(0, len(x), 2, dtype=torch.float32) / len(x)))
    angle = torch.tensor(position).float() * frequency
    cos, sin, a, b = angle.cos(), angle.sin(), x[:half], x[half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin))


class NaiveDFlash:
    """`tensors` as published; `embedding` [V, E] and `head` [V, E] are the target's."""

    def __init__(
        self, tensors: Mapping[str, Tensor], config: Mapping[str, Any], embedding: Tensor, head: Tensor
    ) -> None:
        self.tensors, self.config = tensors, config
        self.embedding = tensors.get("embed_tokens.weight", embedding)
        ids = None if "d2t" not in tensors else torch.arange(len(tensors["d2t"])) + tensors["d2t"]
        self.ids = ids
        own = tensors.get("lm_head.weight")
        self.head = own if own is not None else head if ids is None else head[ids]
        self.layers = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("layers."))

    def context(self, states: Tensor) -> Tensor:
        """The context [P, E] from the target's fused states [P, S]."""
        return rms(
            states @ self.tensors["fc.weight"].T, self.tensors["hidden_norm.weight"], self.config["rms_norm_eps"]
        )

    def block(self, states: Tensor, last: int, mask: int, width: int) -> Tensor:
        """Normed states [width, E] of the block [last, mask, ..] after the context of `states` [P, S]."""
        config, eps, past = self.config, self.config["rms_norm_eps"], len(states)
        context = self.context(states)
        h = self.embedding[torch.tensor([last] + [mask] * (width - 1))] * config.get("input_embedding_scale", 1.0)
        for index in range(self.layers):
            stem = f"layers.{index}."
            weight = {name[len(stem) :]: each for name, each in self.tensors.items() if name.startswith(stem)}
            slides = (config.get("layer_types") or ["full_attention"] * self.layers)[index] == "sliding_attention"
            entry = rms(h, weight["input_layernorm.weight"], eps)
            normed = self.convolved(entry, entry, weight, "attention", 0)
            both = torch.cat((context, normed))
            q = self.heads(normed, weight, "q", range(past, past + width))
            k = self.heads(both, weight, "k", range(past + width))
            v = self.heads(both, weight, "v", None)
            out = torch.empty(width, q.shape[1] * q.shape[2], dtype=h.dtype)
            for i in range(width):
                seen = [
                    s
                    for s in range(past + width)
                    if not slides
                    or (past + i - config["sliding_window"] < s and (s <= past + i or config.get("is_causal") is False))
                ]
                for head in range(q.shape[1]):
                    shared = head // (q.shape[1] // k.shape[1])
                    score = k[seen, shared] @ q[i, head] / q.shape[2] ** 0.5
                    out[i, head * q.shape[2] : (head + 1) * q.shape[2]] = score.softmax(0) @ v[seen, shared]
            h = h + self.convolved(out @ weight["self_attn.o_proj.weight"].T, entry, weight, "attention", 1)
            entry = rms(h, weight["post_attention_layernorm.weight"], eps)
            normed = self.convolved(entry, entry, weight, "mlp", 0)
            gate, up = (normed @ weight[f"mlp.{part}_proj.weight"].T for part in ("gate", "up"))
            out = (gate * gate.sigmoid() * up) @ weight["mlp.down_proj.weight"].T
            h = h + self.convolved(out, entry, weight, "mlp", 1)
        return rms(h, self.tensors["norm.weight"], eps)

    def convolved(self, x: Tensor, entry: Tensor, weight: Mapping[str, Tensor], part: str, side: int) -> Tensor:
        """x [B, E] after a convolution of DFlash 2, channel by channel, with the kernels of `entry` [B, E]."""
        if f"{part}_conv.base_kernel" not in weight:
            return x
        base, dynamic = (
            weight[f"{part}_conv.base_kernel"][side],
            entry @ weight[f"{part}_conv.kernel_projection.weight"].T,
        )
        method = self.config.get("dflash_config", self.config)
        groups, taps = x.shape[1] // method["conv_group_size"], method["conv_kernel_size"]
        out = torch.zeros_like(x)
        for i in range(len(x)):
            for channel in range(x.shape[1]):
                for tap in range(min(taps, i + 1)):
                    at = (side * taps + tap) * groups + channel // method["conv_group_size"]
                    out[i, channel] += (base[tap, channel] + dynamic[i, at]) * x[i - tap, channel]
        return out

    def heads(self, x: Tensor, weight: Mapping[str, Tensor], part: str, positions: Sequence[int] | None) -> Tensor:
        """Projections [N, H, D]; queries and keys are normed and rotated."""
        config = self.config
        out = x @ weight[f"self_attn.{part}_proj.weight"].T
        out = out.view(len(x), -1, config["head_dim"])
        if positions is None:
            return out
        if f"self_attn.{part}_norm.weight" in weight:
            out = rms(out, weight[f"self_attn.{part}_norm.weight"], config["rms_norm_eps"])
        return torch.stack(
            [
                torch.stack([rotated(head, position, config["rope_theta"]) for head in row])
                for row, position in zip(out, positions, strict=True)
            ]
        )

    def logits(self, states: Tensor) -> Tensor:
        """Logits [.., Vd] over the ids that it drafts."""
        out = states @ self.head.T * self.config.get("output_multiplier", 1.0)
        cap = self.config.get("final_logit_softcapping")
        return (out / cap).tanh() * cap if cap else out

    # --- DFlash 2 ---

    def chosen(self, states: Tensor, tokens: Sequence[int]) -> Tensor:
        """Logits [len(tokens), V] after each of `tokens`, a path."""
        tensors, count = self.tensors, self.config.get("dflash_config", self.config)["selector_top_k"]
        before, after = (tensors[f"candidate_selector.{name}_codebook"] for name in ("predecessor", "successor"))
        rows = []
        for token, h in zip(tokens, states, strict=False):
            unary, row = self.logits(h), torch.full((len(after),), -torch.inf, dtype=h.dtype)
            latent = before[token] * (tensors["candidate_selector.hidden_projection.weight"] @ h)
            for b in unary.argsort(descending=True)[:count].tolist():
                row[b] = unary[b] + latent @ after[b]
            rows.append(row)
        return torch.stack(rows)

    # --- DSpark ---

    def walk(self, states: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Logits [len(tokens), Vd] after each of `tokens`, a path, and the acceptance estimates there."""
        tensors, kind = self.tensors, self.config["markov_head_type"]
        table, output = tensors["markov_head.markov_w1.weight"], tensors["markov_head.markov_w2.weight"]
        memory = torch.zeros(table.shape[1], dtype=states.dtype)
        rows, estimates = [], []
        for token, h in zip(tokens, states, strict=False):
            e = table[token]
            latent = e
            if kind == "gated":
                gate = (
                    tensors["markov_head.gate_proj.weight"] @ torch.cat((h, e)) + tensors["markov_head.gate_proj.bias"]
                )
                latent = gate.sigmoid() * e
            if kind == "rnn":
                joint = tensors["markov_head.joint_proj.weight"] @ torch.cat((memory, e, h))
                gate, candidate, latent = (joint + tensors["markov_head.joint_proj.bias"]).chunk(3)
                memory = gate.sigmoid() * memory + (1 - gate.sigmoid()) * candidate.tanh()
                latent = latent.tanh()
            rows.append(self.logits(h) + output @ latent)
            if "confidence_head.proj.weight" in tensors:
                weight = tensors["confidence_head.proj.weight"][0]
                features = torch.cat((h, e)) if len(weight) > len(h) else h
                estimates.append((weight @ features + tensors["confidence_head.proj.bias"][0]).sigmoid())
        return torch.stack(rows), torch.stack(estimates) if estimates else torch.zeros(0)
