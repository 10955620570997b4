"""transformers' candidate generators as drafters, in batches and with any acceptance.

Assisted Generation, https://huggingface.co/blog/assisted-generation

    draft = get_candidates(text so far);  q = softmax(candidate logits), or a point mass where there are none
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.batching import RowState
from pardec.samplers.spec import Part, Spec, parse
from pardec.samplers.speculative import compatibility
from pardec.samplers.speculative.contracts import (
    DecodeContext,
    Draft,
    Drafter,
    RoundResult,
    SpeculativeSampler,
    Uniforms,
)

from .lending import own_attention


def candidates(source: Any, *, accept: str = "speculative", k: int = 20) -> SpeculativeSampler:
    """A sampler that drafts with transformers' candidate generators.

    Args:
        source: a `CandidateGenerator`, for a batch of one; or a function that creates one for each row from its ids
            [1, L] when candidates are first needed, one token after the prompt. Sampled candidates must come with the
            logits that they were drawn from.
        accept: the acceptance rule for drafted tokens; the default is exact, for greedy decoding and for sampling.
        k: most candidates per round.

    Raises:
        SpecError: not a generator, or one that needs more than the text.
    """
    acceptance = registry.build_method(parse(accept).parts[0], "ar")
    card = registry.find(parse(accept).parts[0].name, "ar")
    if card.stage != "accept":
        raise SpecError(
            f"{card.name!r} is not an acceptance rule", hint='"pardec list samplers --stage accept" shows them'
        )
    spec = Spec((Part("candidates", (("k", str(k)),)), *parse(accept).parts))
    sampler = SpeculativeSampler(spec, getattr(acceptance, "exact", card.exact), Candidates(source, k), acceptance)
    compatibility.check(sampler)
    return sampler


@dataclass(frozen=True)
class Candidates(Drafter):
    """The drafter; `candidates` wraps it in a sampler."""

    source: Any
    k: int
    exact: ClassVar[str] = "greedy"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise SpecError(f"candidates: k must be at least 1, got {self.k}")
        if not (_is_generator(self.source) or callable(self.source)):
            raise SpecError(
                f"candidates: {type(self.source).__name__} has no get_candidates and is not callable",
                hint="pass a CandidateGenerator, or a function from a row's ids [1, L] to one",
            )

    def start(self, context: DecodeContext) -> _Generators:
        rows = len(context.text)
        if _is_generator(self.source):
            if rows > 1:
                raise SpecError(
                    f"one candidate generator cannot follow {rows} rows", hint="pass a function that makes one per row"
                )
            return _Generators([_check_generator(self.source)])
        return _Generators([None] * rows)

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: _Generators) -> Draft:
        text, vocab = context.text, context.model.vocab_size
        batch, device = len(text), text.device
        drafted, counts = torch.zeros(batch, self.k, dtype=torch.int64, device=device), np.zeros_like(text.length)
        all_logits: list[Tensor | None] = []
        for at in range(batch):
            ids = torch.from_numpy(text.row(at).copy())[None].to(device)
            with own_attention():
                generator = state.generators[at] = state.generators[at] or _check_generator(self.source(ids))
                ids_out, logits = generator.get_candidates(ids) if remaining[at] > 0 else (ids, None)
            tokens = ids_out[0, ids.shape[1] :][: min(self.k, max(int(remaining[at]), 0))].to(device)
            drafted[at, : len(tokens)], counts[at] = tokens, len(tokens)
            all_logits.append(None if logits is None else _match_vocabulary(logits[0, : len(tokens)].to(device), vocab))
        most = int(counts.max(initial=0))
        if not context.request.temperature or all(logits is None for logits in all_logits) or not most:
            return Draft.chain(text, drafted, counts)
        q = torch.full((batch, most + 1, vocab), 1 / vocab, device=device)
        point = torch.ones(batch, most + 1, dtype=torch.bool, device=device)
        for at, logits in enumerate(all_logits):
            if logits is not None:
                q[at, 1 : len(logits) + 1], point[at, 1 : len(logits) + 1] = logits.softmax(-1), False
        return Draft.chain(text, drafted, counts, q=q, is_point_mass=point)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: _Generators) -> None:
        """Reports accepted candidates to each generator; the prompt's round has no candidates."""
        if not state.after_prompt:
            state.after_prompt = True
            return
        text, sizes = context.text, outcome.draft.sizes
        for row, generator in enumerate(state.generators):
            ids = torch.from_numpy(text.row(row).copy())[None].to(text.device)
            matches = min(int(outcome.gained[row]) - 1, int(sizes[row]) - 1)
            with own_attention():
                generator.update_candidate_strategy(
                    ids, outcome.distributions.logits[row : row + 1, : sizes[row]], matches
                )


class _Generators(RowState):
    """One generator per live row."""

    per_row = ("generators",)
    accepts_rows = False

    def __init__(self, generators: list[Any]) -> None:
        self.generators = generators  # None until first needed
        self.after_prompt = False  # the prompt's round is over


def _is_generator(source: Any) -> bool:
    return callable(getattr(source, "get_candidates", None))


def _check_generator(generator: Any) -> Any:
    if not _is_generator(generator):
        raise SpecError(f"candidates: the function gave a {type(generator).__name__}, which has no get_candidates")
    if getattr(generator, "requires_model_outputs", False):
        raise SpecError(
            f"{type(generator).__name__} drafts from the outputs of transformers' own forwards",
            hint="pardec list samplers --stage draft shows what drafts with the model itself",
        )
    return generator


def _match_vocabulary(logits: Tensor, vocab: int) -> Tensor:
    """float32 logits over the target's vocabulary: tokens that the drafting model lacks have probability 0."""
    wide = torch.nn.functional.pad(logits.float(), (0, max(0, vocab - logits.shape[-1])), value=-torch.inf)
    return wide[..., :vocab]
