"""The driver of autoregressive models, of text and of image codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pardec.models.errors import SpecError, one_line
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from pardec.samplers.cards import find
from pardec.samplers.spec import Spec
from pardec.samplers.speculative import compatibility
from pardec.samplers.speculative import loop as speculative
from pardec.samplers.speculative.contracts import SpeculativeSampler

from ..requests import draft_models
from ..serving.rows import merge_requests
from ..serving.running import Decoding, Progress, RunningBatch, WholeBatch
from .text import TextCall, TextDriver

if TYPE_CHECKING:
    from pardec.samplers.events import Event
    from pardec.samplers.request import Request

    from ..requests.prompts import Row
    from ..requests.settings import Settings
    from ..serving.rows import QueuedRow


class ARDriver(TextDriver):
    """Writes from left to right, by the verify loop."""

    family = "ar"
    main_stage = "draft"
    is_masked = False
    feeds_prompts = True

    @classmethod
    def drives(cls, network: Any) -> bool:
        return isinstance(network, LanguageModel) and not network.decoding_config.masked

    def check(self, sampler: SpeculativeSampler, request: Request) -> None:
        compatibility.check(sampler, self.network, request, published=True)

    def decode(self, call: TextCall, *, steps: bool) -> Iterator[Event]:
        return speculative.decode(self.network, call.sampler, call.request, steps=steps)

    def sampler(self, settings: Settings) -> SpeculativeSampler:
        return registry.resolve(settings.sampler, "ar", sampling=settings.temperature > 0)

    def own_fields(self, sampler: SpeculativeSampler, settings: Settings, rows: list[Row]) -> dict[str, Any]:
        return {
            "block_length": 1,
            "absolute": settings.block_align == "absolute",
            "corpus": read_corpus(sampler, self.network),
            "draft_model": draft_models.for_text(sampler, self.network),
            "processors": tuple(settings.logits_processor or ()),
        }

    def batch(self, model: Decoding, rows: Sequence[QueuedRow]) -> RunningBatch:
        if rows[0].call.sampler.texts is None:
            return super().batch(model, rows)
        waits = "texts that come from one pass over their prompt are written a whole batch at a time"
        return WholeBatch(model, rows, merge_requests(rows), waits)

    def start(self, sampler: Any, request: Request, running: speculative.VerifyLoop | None) -> speculative.VerifyLoop:
        return speculative.VerifyLoop(self.network, sampler, request)

    def step(self, loop: speculative.VerifyLoop) -> int:
        before = loop.forward.padded
        loop.round()
        return (loop.forward.padded - before) * loop.forward.cache.copies

    def progress(self, loop: speculative.VerifyLoop, at: int) -> Progress:
        text = loop.text
        tokens, end = text.host[at, : text.limit[at]], int(text.length[at])
        return Progress(tokens, np.arange(len(tokens)) >= end, end, int(text.nfe[at]))

    def check_drafts(self, sampler: SpeculativeSampler) -> None:
        sampler.width(self.network)

    @classmethod
    def references(cls, spec: Spec) -> dict[str, tuple[str, ...]]:
        return {"baseline": ("sequential",)}

    @classmethod
    def judged_against(cls, spec: Spec) -> list[Spec]:
        """A sampler with an acceptance rule is compared with its drafter alone."""
        alone = tuple(part for part in spec.parts if find(part.name, "ar").stage != "accept")
        return [Spec(alone)] if alone and len(alone) < len(spec.parts) else []

    def cost_ratio(self, sampler: Any) -> float | None:
        resolved = registry.resolve(sampler, "ar")
        return resolved.draft.cost_ratio(self.network, draft_models.for_text(resolved, self.network))


def read_corpus(sampler: SpeculativeSampler, model: LanguageModel) -> tuple[int, ...] | None:
    """The tokens of the text file in which the sampler counts n-grams; None if it names none.

    Raises SpecError for a file that cannot be read or is empty, and for a model without a tokenizer.
    """
    texts = sampler.texts
    if texts is None or texts.needed_corpus is None:
        return None
    file = Path(texts.needed_corpus)
    if model.tokenizer is None:
        raise SpecError(f"corpus={file} is text and {model.name} comes without a tokenizer", hint="leave corpus out")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SpecError(f"corpus={file} cannot be read as text: {one_line(error)}", hint="name a UTF-8 file") from error
    ids = tuple(model.tokenizer(text, add_special_tokens=False)["input_ids"])
    if not ids:
        raise SpecError(f"corpus={file} is empty", hint="name a file with text like the answers")
    return ids
