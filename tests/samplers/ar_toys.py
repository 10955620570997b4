"""Tiny random autoregressive models, their enumerated distributions over texts, and tests of draws against these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch

from pardec.models.decoder import Decoder, DecoderConfig
from pardec.models.model import DecodingConfig, LanguageModel
from pardec.models.plan import Plan
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.events import Finished
from pardec.samplers.ops.distribution import filter_logits
from pardec.samplers.request import Request
from pardec.samplers.rng import Keyed, Source
from pardec.samplers.spec import parse
from pardec.samplers.speculative.contracts import Acceptance, Drafter, Length, Shape, SpeculativeSampler
from pardec.samplers.speculative.loop import decode
from tests.samplers.toys import draw_weights


def toy_ar(
    seed: int = 0,
    vocab: int = 5,
    sharp: float = 1.0,
    *,
    layers: int = 2,
    width: int = 16,
    eos: Sequence[int] = (),
    dtype: torch.dtype = torch.float32,
    heads: int = 2,
    head_dim: int = 8,
    frequencies: tuple[float, ...] = (1.0, 0.3, 0.1, 0.03),
) -> LanguageModel:
    """A causal stack with random weights; `sharp` scales the logits. The pad id, 0, is a token like any other."""
    decoder = Decoder(
        DecoderConfig(
            vocab=vocab,
            width=width,
            layers=layers,
            heads=heads,
            kv_heads=1,
            head_dim=head_dim,
            mlp_width=24,
            norm_eps=1e-6,
            frequencies=frequencies,
        )
    )
    draw_weights(decoder, seed, sharp)
    decoder.to(dtype).eval().requires_grad_(False)
    decoding_config = DecodingConfig(None, tuple(eos), 0, None, 1, "causal")
    where = {"path": None, "device": torch.device("cpu"), "dtype": dtype}
    return LanguageModel(
        decoder, decoding_config, {}, None, "toy", family="toy", vocab_size=vocab, layers=layers, width=width, **where
    )


def prompts(lengths: Sequence[int], *, seed: int = 0, vocab: int = 5) -> list[list[int]]:
    """Random prompts."""
    drawn = np.random.RandomState(seed)
    return [drawn.randint(0, vocab, size).tolist() for size in lengths]


def speculation(
    drafter: Drafter,
    accept: str | Acceptance = "speculative",
    *,
    shape: Shape | None = None,
    length: Length | None = None,
) -> SpeculativeSampler:
    """A sampler made of unregistered objects; an acceptance may be given by name."""
    rule = registry.build_method(parse(accept).parts[0], "ar") if isinstance(accept, str) else accept
    return SpeculativeSampler(parse("sequential"), "distribution", drafter, rule, shape, length)


def request(
    given: Sequence[Sequence[int]], new: int | Sequence[int], *, seeds: Sequence[int] | None = None, **options: Any
) -> Request:
    """A request of `new` tokens after each prompt; by default row i has the seed 100 + i."""
    counts = [new] * len(given) if isinstance(new, int) else new
    source: Source = options.pop("source", None) or Keyed(tuple(seeds or range(100, 100 + len(given))))
    rows = (torch.tensor([*row, *[-1] * count]) for row, count in zip(given, counts, strict=True))
    return Request(tuple(rows), tuple(map(len, given)), block_length=1, source=source, **options)


def run(
    model: LanguageModel,
    spec: str | SpeculativeSampler,
    given: Sequence[Sequence[int]],
    new: int | Sequence[int],
    *,
    temperature: float = 0.0,
    seeds: Sequence[int] | None = None,
    **options: Any,
) -> Finished:
    """Decodes `new` tokens after each prompt; keywords set other fields of `Request`, such as stop_ids and top_k."""
    made = registry.resolve(spec, "ar", sampling=temperature > 0)
    options.setdefault("draft_model", draft_models.for_text(made, model))
    *_, last = decode(model, made, request(given, new, seeds=seeds, temperature=temperature, **options), steps=False)
    assert isinstance(last, Finished)
    return last


def rows(done: Finished) -> list[list[int]]:
    """The rows without padding."""
    return [done.tokens[i, :length].tolist() for i, length in enumerate(done.trace.lengths)]


# --- the truth ---


def plain_greedy(model: LanguageModel, prompt: Sequence[int], new: int) -> list[int]:
    """Greedy decoding without cache, loop or sampler: one whole forward per token."""
    text = list(prompt)
    for _ in range(new):
        text.append(int(logits(model, [text])[0, -1].argmax()))
    return text


def picks(model: LanguageModel) -> Callable[[Sequence[int]], list[int]]:
    """The likeliest token after each position of a text; each text runs through the model once."""
    known: dict[tuple[int, ...], list[int]] = {}

    def picked(text: Sequence[int]) -> list[int]:
        if tuple(text) not in known:
            known[tuple(text)] = logits(model, [text])[0].argmax(-1).tolist()
        return known[tuple(text)]

    return picked


def logits(model: LanguageModel, texts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Raw logits [B, L, V] of whole texts of one length, without a cache."""
    return model.forward(Plan.full(torch.tensor(texts), model.visible())).logits()


def joint(
    model: LanguageModel,
    prompt: Sequence[int],
    n: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> np.ndarray:
    """The true probability of every continuation of `n` tokens, [V] * n, by enumeration."""
    vocab = model.vocab_size
    ends = list(product(range(vocab), repeat=n))
    raw = logits(model, [[*prompt, *end] for end in ends])[:, len(prompt) - 1 : -1]
    kept = filter_logits(raw, temperature=temperature, top_k=top_k, top_p=top_p, order="top_k")
    each = kept.double().softmax(-1).gather(-1, torch.tensor(ends)[..., None])[..., 0]
    found: np.ndarray = each.prod(1).numpy().reshape((vocab,) * n)
    return found


def is_greedy(model: LanguageModel, text: Sequence[int], start: int) -> bool:
    """Whether every token from `start` on is the likeliest after those before it, by one whole forward."""
    return bool((logits(model, [text])[0, start - 1 : -1].argmax(-1) == torch.tensor(text[start:])).all())


# --- draws against it ---


def counted(done: Finished, prompt: int, n: int, vocab: int, which: slice = slice(None)) -> np.ndarray:
    """How often each continuation of `n` tokens was drawn after prompts of this length, [V] * n."""
    ends = done.tokens[which, prompt : prompt + n]
    index = (ends * vocab ** np.arange(n)[::-1]).sum(1)
    return np.bincount(index, minlength=vocab**n).reshape((vocab,) * n)


def g_test(counts: np.ndarray, distribution: np.ndarray) -> float:
    """The G statistic of `counts` against the distribution `law`, in standard deviations above its mean.

    The transformation is Wilson and Hilferty's. Cells expected fewer than five times are merged; a draw of probability
    0 is infinitely far off.
    """
    seen, expected = counts.ravel().astype(float), distribution.ravel() * counts.sum()
    if (seen[expected == 0] > 0).any():
        return float("inf")
    rare = expected < 5
    seen = np.append(seen[~rare], seen[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 5:  # too little even together: it joins the lightest cell
        at = int(expected[:-1].argmin())
        seen[at], expected[at] = seen[at] + seen[-1], expected[at] + expected[-1]
        seen, expected = seen[:-1], expected[:-1]
    free = len(seen) - 1
    busy = seen > 0
    statistic = 2 * float((seen[busy] * np.log(seen[busy] / expected[busy])).sum())
    return float(((statistic / free) ** (1 / 3) - (1 - 2 / (9 * free))) / np.sqrt(2 / (9 * free)))


def variation(counts: np.ndarray, distribution: np.ndarray) -> float:
    """The total variation between the frequencies and the distribution."""
    return float(np.abs(counts / counts.sum() - distribution).sum() / 2)


def floor(distribution: np.ndarray, draws: int) -> float:
    """The mean of `variation` for exact draws, by the normal approximation."""
    return float(np.sqrt(distribution * (1 - distribution) / (2 * np.pi * draws)).sum())


def spread(distribution: np.ndarray, draws: int) -> float:
    """The standard deviation of `variation` for exact draws, as if cells were independent."""
    return float(np.sqrt((1 - 2 / np.pi) * (distribution * (1 - distribution) / draws).sum()) / 2)
