"""Drafts with a second, smaller checkpoint that has its own KV cache.

Fast Inference from Transformers via Speculative Decoding, https://arxiv.org/abs/2211.17192
Accelerating Large Language Model Decoding with Speculative Sampling, https://arxiv.org/abs/2302.01318

    x_i ~ q(. | text, x_1 .. x_(i-1)),  i = 1 .. k,  q processed like the target's distribution

With `vocab` the drafter's head has the rows of some ids alone, and q is 0 elsewhere:
VOCABTRIM: Vocabulary Pruning for Efficient Speculative Decoding in LLMs, https://arxiv.org/abs/2506.22694

With `parallel` drafted tokens go through so many layers at once (see `models.layer_groups`), and the next round feeds
the accepted ones again, one layer after the other, in the forward that also predicts its first token:
EasySpec: Layer-Parallel Speculative Decoding for Efficient Multi-GPU Utilization, https://arxiv.org/abs/2502.02493

With `device` the drafter runs elsewhere than the target. Tokens go there and logits come back in each of its forwards:
Dovetail: A CPU/GPU Heterogeneous Speculative Decoding for LLM Inference, https://arxiv.org/abs/2412.18934

Deviates from the papers: rows of any lengths in a batch, drafts of any shape. Accepted tokens that the drafter was
never fed, such as the last one of a chain, are fed with the next round's first token.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import ModelError, SpecError
from pardec.models.layer_parallel import check_parallel
from pardec.models.model import LanguageModel
from pardec.models.trimmed import parameters_read

from ...conditioning import conditioned_model
from ...registry import register
from ...spec import ModelName
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, SpeculativeSampler, Uniforms
from ..draft_model import DraftModelState


@register("model", stage="draft", paper="arXiv:2211.17192", exact="greedy", checked="joint")
@dataclass(frozen=True)
class Model(Drafter):
    takes_shape: ClassVar[bool] = True
    takes_length: ClassVar[bool] = True
    state: ClassVar[type[DraftModelState]] = DraftModelState
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (5, 3, 8)}

    name: Annotated[ModelName | None, "of the drafting checkpoint: embedded name, folder or hub id"] = None
    k: Annotated[int, "tokens drafted, which is how deep a tree grows"] = 5
    vocab: Annotated[
        str | None, "ids that it drafts: a file that lists them, or how many of frequent_ids.json beside the checkpoint"
    ] = None

    parallel: Annotated[int | None, "layers that drafted tokens go through at once; none: one after the other"] = None
    device: Annotated[str | None, "that the drafter runs on; none: the target's"] = None

    def __post_init__(self) -> None:
        self.require("k", "parallel", least=1)
        if self.device is not None:
            check_device(self.registered[0], self.device)

    def check(self, sampler: SpeculativeSampler) -> None:
        if not self.name:
            kind = self.registered[0]
            raise SpecError(
                f"{kind}: name is not given: the checkpoint that drafts",
                hint=f"write {kind}:name=... with an embedded name, a folder or a hub id of the target's vocabulary",
            )

    @property
    def needed_model(self) -> str | None:
        return self.name

    @property
    def needed_vocabulary(self) -> str | None:
        return self.vocab

    def width(self, model: LanguageModel) -> int:
        return self.k + 1

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> float | None:
        """Parameters of the drafter over those of the target: reading them is most of a forward's cost."""
        return parameters_read(draft_model) / target.parameters if isinstance(draft_model, LanguageModel) else None

    def start(self, context: DecodeContext) -> DraftModelState:
        drafter = context.request.draft_model
        if not isinstance(drafter, LanguageModel):
            raise ModelError("model: the request has no draft model", "load it and hand it in as Request.draft_model")
        check_pair(drafter, context.model)
        if self.parallel is not None:
            check_parallel(drafter)
        drafter = conditioned_model(drafter, context.request)
        longest = int(context.text.limit.max())
        cache = drafter.new_cache(len(context.text), longest, scratch=context.cache.capacity - longest)
        state = self.state(context, drafter, cache, own=True, parallel=self.parallel or 1)
        state.reuse_prefixes()
        return state

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: DraftModelState) -> Draft:
        return state.draft(self.k, room, uniforms)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: DraftModelState) -> None:
        state.compact_cache(outcome)


def check_pair(drafter: LanguageModel, target: LanguageModel) -> None:
    """Raises ModelError unless `drafter` predicts the same tokens as `target`, left to right."""
    if drafter.decoding_config.attention != "causal":
        raise ModelError(f"{drafter.name} cannot draft: it is no autoregressive model", "draft with a causal one")
    ours, theirs = (model.tokenizer and model.tokenizer.get_vocab() for model in (target, drafter))
    same = ours == theirs if ours and theirs else target.vocab_size == drafter.vocab_size
    if not same:
        raise ModelError(
            f"{drafter.name} (vocabulary {drafter.vocab_size}) and {target.name} (vocabulary {target.vocab_size}) do "
            "not share their tokens",
            "draft with a checkpoint of the same tokenizer",
        )


def check_device(method: str, name: str) -> None:
    """Raises SpecError unless torch knows the device `name`."""
    try:
        torch.device(name)
    except RuntimeError:
        raise SpecError(
            f"{method}: device is no device of torch, got {name!r}",
            hint='device=cpu, or device="cuda:1", quoted for its colon',
        ) from None
