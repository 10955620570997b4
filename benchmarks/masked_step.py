"""Times a step of the masked loop against a plain loop over the same decoder, in pairs, on one thread.

    python benchmarks/masked_step.py [--model tiny-dream] [--pairs 10] [--out benchmarks/masked_step.json]

The plain loop is written as the papers' own code is: logits of every position it feeds, keys and values concatenated
from what is kept and what is fresh, a Python loop over the rows to choose what is committed, all rows in lock step.
Both run the same weights, fused projections, attention kernel and inference mode, and must give the same tokens.
pardec's step is split into forward (the model, head included), decision (from logits to commit) and host (the rest).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

import pardec
from pardec.models.decoder import Decoder
from pardec.models.rope import rotate
from pardec.samplers import registry
from pardec.samplers.contracts import Request
from pardec.samplers.loops.masked import MaskedLoop
from pardec.samplers.rng import Keyed

PROMPT = "Tom has 12 apples. He buys 7 more. How many apples does Tom have now?"
CASES = [(cache, batch) for cache in ("none", "dual") for batch in (1, 8)]


# --- the plain loop ---


class Plain:
    """Fast-dLLM's way of decoding with `sequential`, for a shifted or unshifted model; rows of equal length."""

    def __init__(self, model: pardec.Model, cached: bool) -> None:
        self.model, self.cached = model.language_model, cached
        decoder = self.model.decoder
        assert isinstance(decoder, Decoder)
        self.decoder = decoder
        count = self.model.max_positions or 2048
        angles = torch.arange(count)[:, None] * torch.tensor(decoder.config.frequencies)
        self.cos = torch.cat([angles.cos(), angles.cos()], -1)[None, :, None]
        self.sin = torch.cat([-angles.sin(), angles.sin()], -1)[None, :, None]  # signed, as `rotate` takes it

    @torch.inference_mode()
    def run(self, tokens: Tensor, prompt: int, block: int) -> tuple[Tensor, int]:
        """Fills `tokens` [B, L]; the canvas and the number of steps."""
        tokens, mask, shift, steps = tokens.clone(), self.model.facts.mask_id, self.model.facts.shift, 0
        for lo in range(prompt, tokens.shape[1], block):
            hi, kept = min(lo + block, tokens.shape[1]), None
            while (tokens[:, lo:hi] == mask).any():
                start = 0 if kept is None else lo - shift
                stop = tokens.shape[1] if kept is None else hi
                logits, fresh = self.forward(tokens[:, start:stop], start, kept)
                kept = (kept or fresh) if self.cached else None
                if shift:
                    logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1) if start == 0 else logits[:, :-1]
                first = lo if start == 0 else 0
                self.commit(tokens[:, lo:hi], logits[:, first : first + hi - lo], mask)
                steps += 1
        return tokens, steps

    def commit(self, block: Tensor, logits: Tensor, mask: int | None) -> None:
        """The surest open position of each row."""
        masked = block == mask
        logits[..., mask] = -torch.inf
        candidates = logits.argmax(-1)
        confidence = F.softmax(logits, dim=-1).gather(-1, candidates[..., None])[..., 0]
        candidates = torch.where(masked, candidates, block)
        confidence = torch.where(masked, confidence, -torch.inf)
        chosen = torch.zeros_like(masked)
        for row in range(len(block)):
            _, where = torch.topk(confidence[row], k=1)
            chosen[row, where] = True
        block[chosen] = candidates[chosen]

    def forward(self, tokens: Tensor, start: int, kept: Any) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Logits of all `tokens` [B, Q], which stand from `start` on, and the K/V of each layer."""
        config, stop = self.decoder.config, start + tokens.shape[1]
        cos, sin = self.cos[:, start:stop], self.sin[:, start:stop]
        h, fresh = self.decoder.embed(tokens), []
        for index, layer in enumerate(self.decoder.layers):
            normed = F.rms_norm(h, (config.width,), layer.attn_norm, config.norm_eps)
            fused = F.linear(normed, layer.qkv_weight, layer.qkv_bias)
            heads = rearrange(fused, "b q (h d) -> b q h d", d=config.head_dim)
            turned = rotate(heads[:, :, : config.heads + config.kv_heads], cos, sin)
            q, k = turned[:, :, : config.heads], turned[:, :, config.heads :]
            v = heads[:, :, config.heads + config.kv_heads :]
            fresh.append((k, v))
            if kept is not None:
                k, v = (
                    torch.cat([old[:, :start], new, old[:, stop:]], dim=1)
                    for old, new in zip(kept[index], (k, v), strict=True)
                )
            out = F.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), enable_gqa=config.heads != config.kv_heads
            )
            h = h + F.linear(rearrange(out, "b h q d -> b q (h d)"), layer.out_weight, layer.out_bias)
            normed = F.rms_norm(h, (config.width,), layer.mlp_norm, config.norm_eps)
            both = F.linear(normed, layer.gate_up_weight, layer.gate_up_bias)
            gate, up = both.chunk(2, dim=-1)
            h = h + F.linear(F.silu(gate) * up, layer.down_weight, layer.down_bias)
        return self.decoder.head(self.decoder.norm(h)), fresh


# --- pardec's loop, with a clock ---


class Timed(MaskedLoop):
    """The loop as it is, with the time spent in the model and in the decision."""

    forward_s = decision_s = 0.0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asking.law = self._clocked(self.asking.law, "forward_s")  # type: ignore[method-assign]
        self.decide = self._clocked(self.decide, "decision_s")  # type: ignore[method-assign]
        self.canvas.commit = self._clocked(self.canvas.commit, "decision_s")  # type: ignore[method-assign]

    def _clocked(self, call: Callable[..., Any], into: str) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            result = call(*args, **options)
            setattr(self, into, getattr(self, into) + time.perf_counter() - started)
            return result

        return timed


def time_pardec(model: pardec.Model, request: Request, cache: str) -> tuple[dict[str, float], Tensor]:
    """Milliseconds a step: all, forward, decision and host; and the canvases."""
    started = time.perf_counter()
    loop = Timed(model.language_model, registry.resolve(f"sequential@{cache}"), request)
    while len(loop.canvas):
        loop.step()
        for _ in loop.retire():
            pass
    total, steps = time.perf_counter() - started, len(loop.record.history)
    ms = {"step": total, "forward": loop.forward_s, "decision": loop.decision_s}
    ms["host"] = total - loop.forward_s - loop.decision_s
    tokens = torch.from_numpy(loop.record.finished().tokens)
    return {name: 1e3 * seconds / steps for name, seconds in ms.items()}, tokens


def measure(model: pardec.Model, cache: str, batch: int, pairs: int, new: int, block: int) -> dict[str, Any]:
    """Medians over `pairs` pairs, each with the loops in turn."""
    ids = torch.tensor(model.tokenizer(PROMPT)["input_ids"])
    mask = model.language_model.facts.mask_id
    row = torch.cat([ids, torch.full((new,), mask)])
    request = Request((row,) * batch, (len(ids),) * batch, block, Keyed((0,) * batch))
    plain = Plain(model, cache == "dual")
    ours, theirs = [], []
    for pair in range(pairs + 1):
        split, tokens = time_pardec(model, request, cache)
        started = time.perf_counter()
        expected, steps = plain.run(row.repeat(batch, 1), len(ids), block)
        plain_ms = 1e3 * (time.perf_counter() - started) / steps
        if not torch.equal(tokens, expected):
            raise SystemExit(f"{cache}, batch {batch}: the two loops give different tokens")
        if pair:  # the first pair warms up
            ours.append(split)
            theirs.append(plain_ms)
    middle = {name: statistics.median(run[name] for run in ours) for name in ours[0]}
    ratios = sorted(theirs[i] / ours[i]["step"] for i in range(pairs))
    return {
        "cache": cache,
        "batch": batch,
        "plain_ms": statistics.median(theirs),
        **{f"{name}_ms": value for name, value in middle.items()},
        "speedup": statistics.median(ratios),
        "speedup_min": ratios[0],
        "speedup_max": ratios[-1],
        "decision_and_host": (middle["decision"] + middle["host"]) / middle["step"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="tiny-dream")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--block-length", type=int, default=32)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = pardec.load(options.model, device="cpu", dtype="float32")
    rows = []
    for cache, batch in CASES:
        rows.append(measure(model, cache, batch, options.pairs, options.max_new_tokens, options.block_length))
        r = rows[-1]
        print(
            f"{cache:5} batch {batch}: plain {r['plain_ms']:.2f} ms, pardec {r['step_ms']:.2f} ms a step = "
            f"forward {r['forward_ms']:.2f} + decision {r['decision_ms']:.2f} + host {r['host_ms']:.2f}; "
            f"{r['speedup']:.2f}x ({r['speedup_min']:.2f} to {r['speedup_max']:.2f}), "
            f"decision and host {100 * r['decision_and_host']:.0f}%"
        )
    if options.out:
        machine = {"processor": platform.processor() or platform.machine(), "torch": torch.__version__, "threads": 1}
        options.out.write_text(json.dumps({"model": options.model, "machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
