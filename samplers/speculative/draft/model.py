"""Drafts with a second, smaller checkpoint that has its own KV cache.

Fast Inference from Transformers via Speculative Decoding, https://arxiv.org/abs/2211.17192
Accelerating Large Language Model Decoding with Speculative Sampling, https://arxiv.org/abs/2302.01318

    x_i ~ q(. | text, x_1 .. x_(i-1)),  i = 1 .. k,  q processed like the target's distribution

With `map` the drafter may have another tokenizer, and drafts a chain of point masses:
OmniDraft: A Cross-vocabulary, Online Adaptive Drafter for On-device Speculative Decoding,
https://arxiv.org/abs/2507.02659

    text:      the target's text in the drafter's tokens; of their K/V the longest common prefix stays
    draft:     d_i = argmax q(. | text, d_1 .. d_(i-1));  equal strings are the same token
    map=text:  the longest run d_i .. d_(i+n) that spells a target token is that token; each token that the target
               commits adds its own run

With `vocab` the drafter's head has the rows of some ids alone, and q is 0 elsewhere:
VOCABTRIM: Vocabulary Pruning for Efficient Speculative Decoding in LLMs, https://arxiv.org/abs/2506.22694

`parallel`: drafted tokens go through this many layers at once (see `models.layers.layer_groups`), and the next round
feeds the accepted ones again, one layer after the other, in the forward that also predicts its first token:
EasySpec: Layer-Parallel Speculative Decoding for Efficient Multi-GPU Utilization, https://arxiv.org/abs/2502.02493

With `device` the drafter runs elsewhere than the target. Tokens go there and logits come back in each of its forwards:
Dovetail: A CPU/GPU Heterogeneous Speculative Decoding for LLM Inference, https://arxiv.org/abs/2412.18934

Deviates from the papers: rows of any lengths in a batch, drafts of any shape. Accepted tokens that the drafter was
never fed, such as the last one of a chain, are fed with the next round's first token. The product of q over a run is
not the probability of drafting its token, which other runs spell too: OmniDraft's test would not be exact.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal
from weakref import WeakKeyDictionary

from pardec.models.cuda_graphs.runner import plain_decoder
from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel
from pardec.models.trimmed import Trimmed

from ...registry import register
from ...request import conditioned_model
from ...spec import ModelName
from ...traits import Reasons, Trait, Why
from ..contracts import DecodeContext
from ..draft_model import DraftModelState, ModelDrafter, StateDrafter, check_device, check_pair, check_texts
from .cross_vocabulary import CrossVocabularyState, TokenMap

_NO_SHAPE = "leave the shape out, or use a drafter without map"


@register("model", exact="greedy", checked="joint")
class Model(ModelDrafter, StateDrafter):
    state: ClassVar[type[DraftModelState]] = DraftModelState
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (5, 3, 8)}

    name: Annotated[ModelName | None, "the draft model: embedded name, folder or hub id"] = None
    k: Annotated[int, "tokens drafted, which is how deep a tree grows"] = 5
    vocab: Annotated[
        str | None, "ids that may be drafted: a file with a list, or how many of the checkpoint's frequent_ids.json"
    ] = None
    map: Annotated[
        Literal["ids", "direct", "text"],
        "ids: same tokenizer as the target; direct: translates equal strings; text: also learns runs of tokens",
    ] = "ids"
    keep: Annotated[bool, "one map for all rows and requests of the sampler object; drafts then depend on them"] = False
    parallel: Annotated[int | None, "layers that run at once on drafted tokens; none: one after the other"] = None
    device: Annotated[str | None, "device of the draft model; none: the target's"] = None

    def __post_init__(self) -> None:
        self.require("k", "parallel", least=1)
        if self.device is not None:
            check_device(self.registered[0], self.device)
        # Not a field: the maps are no part of the sampler's identity.
        object.__setattr__(self, "_maps", WeakKeyDictionary[Any, TokenMap]())

    @property
    def provides(self) -> frozenset[Trait]:
        traits = frozenset({Trait.TAKES_SHAPE, Trait.TAKES_LENGTH, Trait.OBSERVES_TOKENS})
        return traits | {Trait.KEEPS_DRAFTS} if self.keep and self.map == "text" else traits

    @property
    def conflicts(self) -> Reasons:
        tree = Why("{me}: with map=" + self.map + " the draft is a chain, and {does}", _NO_SHAPE)
        return {} if self.map == "ids" else {Trait.DRAFTS_TREES: tree}

    @property
    def needed_vocabulary(self) -> str | None:
        return self.vocab

    def start(self, context: DecodeContext) -> DraftModelState | CrossVocabularyState:
        drafter = context.request.draft_model
        if not isinstance(drafter, LanguageModel):
            raise ModelError("model: the request has no draft model", "load it and pass it as Request.draft_model")
        if self.map != "ids":
            return CrossVocabularyState(context, drafter, self._maps_of_rows(context, drafter))
        check_pair(drafter, context.model)
        if self.parallel is not None:
            check_parallel(drafter)
        drafter = conditioned_model(drafter, context.request)
        state = self.state(context, drafter, context.drafter_cache(drafter), own=True, parallel=self.parallel or 1)
        state.reuse_prefixes()
        return state

    def _maps_of_rows(self, context: DecodeContext, drafter: LanguageModel) -> list[TokenMap]:
        """The token map of each row."""
        check_texts(self.map, drafter, context.model)
        maps: WeakKeyDictionary[Any, TokenMap] = vars(self)["_maps"]
        stack = context.model.decoder
        if stack not in maps or maps[stack].tokenizers != (drafter.tokenizer, context.model.tokenizer):
            maps[stack] = TokenMap(drafter, context.model, runs=self.map == "text")
        return [maps[stack] if self.keep else maps[stack].copy() for _ in range(len(context.text))]


def check_parallel(model: LanguageModel) -> None:
    """Raises ModelError unless layers of `model` can run on the same input."""
    stack = plain_decoder(model.decoder.base if isinstance(model.decoder, Trimmed) else model.decoder)
    if stack is not None and stack.placement is None and not stack.config.canvas and model.processes == 1:
        return
    raise ModelError(
        f"layers of {model.name} cannot run in parallel: it does not run in the native decoder on one device",
        "leave parallel out",
    )
