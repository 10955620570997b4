"""The likelihood of a text under a causal model, which a task reports in addition to its score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pardec.models.errors import SpecError
from pardec.models.plan import Plan

if TYPE_CHECKING:
    from pardec.engine import Engine


class ModelJudge:
    """The mean negative log-likelihood of a text's tokens and its end after a prompt, in nats, by a causal model.

    Args:
        model: as `pardec.load` gives it; one that decodes from left to right and has a tokenizer.

    Raises:
        SpecError: a masked model, which has no such likelihood, or one without a tokenizer.

    >>> import pardec
    >>> judge = ModelJudge(pardec.load("tiny-llama", device="cpu"))
    >>> judge("Reverse the list: 4 7 2.", "2 7 4") < judge("Reverse the list: 4 7 2.", "2 4 7")
    True
    """

    def __init__(self, model: Engine) -> None:
        if model.language_model.decoding_config.masked or model.tokenizer is None:
            raise SpecError(
                f"{model.name} cannot judge", hint="a causal model with a tokenizer can, such as tiny-llama"
            )
        self.model = model
        self.tokenizer: Any = model.tokenizer

    @torch.inference_mode()
    def __call__(self, prompt: str, text: str) -> float:
        network = self.model.language_model
        prefix = self.tokenizer(prompt)["input_ids"]
        answer = [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
        ids = torch.tensor([prefix + answer], device=network.device)  # [1, L]
        logits = network.forward(Plan.full(ids[:, :-1], network.visible())).logits()[0]
        log_probs = logits[len(prefix) - 1 :].float().log_softmax(-1)  # [A, V]
        return -float(log_probs.gather(1, ids[0, len(prefix) :, None]).mean())
