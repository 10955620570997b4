"""Compares a decoded answer with what its model, with a complete cache, predicts after each prefix of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pardec.models.errors import SpecError
from pardec.models.plan import Plan

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel

    from .result import Result


@dataclass(frozen=True)
class Deviation:
    """The difference between an answer and the model's own predictions; one number per row.

    Attributes:
        agreement: the share of the generated tokens that are the model's likeliest after the text before them.
        nats: the mean absolute difference of log-probability between the decoding, with its cache, and the model.
    """

    agreement: list[float]
    nats: list[float]


def deviation(model: LanguageModel, result: Result) -> Deviation:
    """Reads each row of `result` in one forward of `model`, with a plain cache, and compares.

    It measures what lossy caches and relaxed acceptances cost: of an exact answer at temperature 0 the agreement is 1.
    The distributions are the model's own, before processors, temperature and filters.

    Raises SpecError for results that do not come from an autoregressive model's text.
    """
    if not result.trace.accepted or result.latents is not None or result.grid:
        raise SpecError(
            "only the result of an autoregressive model of text can be compared with its predictions after each prefix",
            hint="pass a result of such a model; other models do not predict the next token",
        )
    agreement, nats = list[float](), list[float]()
    for row, start in enumerate(result.prompts):
        stop = start + len(result.tokens[row])
        ids = result.sequences[row, :stop]
        outputs = torch.arange(start - 1, stop - 1, device=model.device)
        with torch.inference_mode():
            hidden = model.forward(Plan.full(ids[None].to(model.device), model.visible()), None)
            logprobs = hidden.logits(outputs[None])[0].log_softmax(-1).cpu()
        own = logprobs.gather(1, ids[start:, None])[:, 0]
        decoded = torch.from_numpy(result.trace.commit_score[row, start:stop]).log()
        agreement.append(float((logprobs.argmax(-1) == ids[start:]).float().mean()))
        nats.append(float((own - decoded).abs().mean()))
    return Deviation(agreement, nats)
