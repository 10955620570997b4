"""Drafts with the target itself without some of its attention and MLP sub-blocks.

SWIFT: On-the-Fly Self-Speculative Decoding for LLM Inference Acceleration, https://arxiv.org/abs/2410.06916
Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative Decoding,
https://arxiv.org/abs/2309.08168
Accelerating Inference in Large Language Models with a Unified Layer Skipping Strategy,
https://arxiv.org/abs/2404.06954 (`skip=uniform`)

    skipped: a share `ratio` of the attention and MLP sub-blocks of all layers but the first and the last
    search: skip <- skip'  iff  match(skip') > match(skip);  match = share of the first `context` generated tokens that
    are the drafter's argmax, all fed in one forward; one candidate a round

Later requests of the model start from the result of a search and continue it; with `disk`, those of later processes do
too (by the weights, `ratio` and `context`). While no row has `context` generated tokens, a half or a quarter of them is
used, and a candidate is judged after `context` scored tokens in all, over several short requests. If tokens are sampled
without seeded noise, each request has its own search, so that a seed gives the same text.

It drafts on the target's KV cache; its own K/V are written where the verify pass writes next.

Deviates from the authors' code: candidates are chosen at random or by exchanging one sub-block of the best one, without
Bayesian optimisation; a length controller decides when to stop (theirs is `layerskip:k=25+unsure:tau=0.8`). The search
is shared by the batch.
Exact: greedy and distribution, with an exact acceptance. How much is drafted depends on the batch and, with
`skip=search`, on earlier requests; so do a row's sampled tokens, not their distribution.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import SpecError
from pardec.models.files import cache_dir
from pardec.models.kernels.layout import stored
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible

from ...host_transfer import download, upload
from ...ops.confidence import argmax
from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Draft, Drafter, SpeculativeSampler, Uniforms
from ..draft_model import DraftModelState

_FOLDER = "layerskip"
_SAMPLE = 8  # about this many values along each axis of a weight tell two models apart


@dataclass(frozen=True, slots=True)
class SkipFile:
    """The file of a search. It is replaced as a whole, so that two writing processes never mix their results.

    If the folder cannot be used, nothing is read or written, except one line in the log.
    """

    name: str

    @staticmethod
    def of(model: LanguageModel, ratio: float, context: int) -> SkipFile:
        """The file for this model's weights, wherever they were loaded from, and this search."""
        return SkipFile(f"{fingerprint(model)}-{ratio:g}-{context}.json")

    def read(self) -> dict[str, Any] | None:
        """The result that `write` stored; None if the file is missing, damaged, or accessible to other users."""
        try:
            with cache_dir.private(_FOLDER) as folder:
                values = json.loads(cache_dir.require_own(folder / self.name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return values if isinstance(values, dict) else None

    def write(self, values: dict[str, Any]) -> None:
        """Replaces the file."""
        try:
            with cache_dir.private(_FOLDER) as folder:
                cache_dir.write(folder / self.name, json.dumps(values).encode())
        except OSError as error:
            cache_dir.warn_uncached(error)


def fingerprint(model: LanguageModel) -> str:
    """Hexadecimal digits that differ for other weights: of every weight's name, type and shape, and some of its values.

    The values are read as they are in memory, evenly spread: a search for other weights costs drafts, and no output.
    """
    digest = hashlib.sha256(f"{model.family} {model.layers}".encode())
    for name, weight in model.decoder.named_parameters():
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        values: Any = stored(weight.detach())
        if type(values) is not torch.Tensor and hasattr(values, "dequantize"):  # a quantized one
            values = values.dequantize()
        if not values.is_meta:
            some = values[tuple(slice(None, None, max(1, size // _SAMPLE)) for size in values.shape)]
            digest.update(download(some.float()).tobytes())
    return digest.hexdigest()[:32]


Skip = frozenset[tuple[int, str]]  # (layer, "attn" or "mlp")

_ENOUGH = 0.95  # a match above this ends the search
_PATIENCE = 300  # candidates without a gain that end it
_TRIES = 1000
_DRAWS = 50  # attempts to find a new candidate

# Keys: the model's decoder; then (ratio, context, version of the weights, whether the result is kept on disk).
_searches: WeakKeyDictionary[Any, dict[tuple[float, int, int, bool], Search]] = WeakKeyDictionary()


def shared_search(model: LanguageModel, ratio: float, context: int, *, disk: bool = False) -> Search:
    """The search of this model, continued from request to request until its weights are replaced.

    With `disk` it begins with what another process has found for these weights, and leaves to others what it finds.
    """
    searches, version = _searches.setdefault(model.decoder, {}), model.weights_version
    for stale in [key for key in searches if key[2] != version]:
        del searches[stale]
    key = ratio, context, version, disk
    if key not in searches:
        searches[key] = Search(model.layers, ratio, SkipFile.of(model, ratio, context) if disk else None)
    return searches[key]


def inner(layers: int) -> list[tuple[int, str]]:
    """The sub-blocks that may be skipped: attention and MLP of every layer except the first and the last."""
    return [(layer, part) for layer in range(1, layers - 1) for part in ("attn", "mlp")]


def uniform(layers: int, ratio: float) -> Skip:
    """A share `ratio` of the inner sub-blocks: whole layers, evenly spread, plus one attention if the number is odd.

    >>> sorted(uniform(8, 0.5))
    [(2, 'attn'), (2, 'mlp'), (4, 'attn'), (4, 'mlp'), (6, 'attn'), (6, 'mlp')]
    """
    count = int(len(inner(layers)) * ratio)
    whole, odd = divmod(count, 2)
    spread = {1 + int((i + 0.5) * (layers - 2) / whole) for i in range(whole)}
    skip = {(layer, part) for layer in spread for part in ("attn", "mlp")}
    if odd:
        free = [layer for layer in range(1, layers - 1) if layer not in spread]
        skip.add((free[len(free) // 2], "attn"))
    return frozenset(skip)


@dataclass(frozen=True, slots=True)
class Tally:
    """A candidate's gain over the best candidate on some texts, and the weight of these texts."""

    gain: float = 0.0
    weight: float = 0.0

    def plus(self, other: Tally) -> Tally:
        return Tally(self.gain + other.gain, self.weight + other.weight)


class Search:
    """Searches sets of a fixed number of sub-blocks, at random and by exchanging one of the best set's.

    Only scores on the same text are compared: on a new text the best set is scored again. A candidate is judged once
    the texts that it was scored on have a total weight of 1.
    """

    def __init__(self, layers: int, ratio: float, file: SkipFile | None = None) -> None:
        """`file`: holds the best set of an earlier search, from which this one begins; stores this one's best set."""
        self.blocks, self.file = inner(layers), file
        self.best: Skip = uniform(layers, ratio)
        self.score: float | None = None  # the best set's score on `text`
        self.text: tuple[Hashable, float] | None = None  # the text and its weight
        self.proposed: set[Skip] = {self.best}
        self.open: dict[Skip, Tally] = {}  # candidates that need scores on more texts
        self.on_text: dict[Skip, Tally] = {}  # candidates' scores on the current text
        self.idle = 0  # candidates since the last gain
        self.rng = np.random.RandomState(0)
        if file is not None:
            self._read(file)

    def next(self, text: Hashable, weight: float = 1.0) -> Skip | None:
        """The set to score next on a part of `text` with this `weight`; None if there is nothing to score."""
        if (text, weight) != self.text or self.score is None:
            if self.text is not None and text != self.text[0]:  # else a longer part of the same text replaces it
                unsettled = {skip: part for skip, part in self.on_text.items() if part.weight}
                self.open |= {skip: self.open.get(skip, Tally()).plus(part) for skip, part in unsettled.items()}
            self.text, self.on_text = (text, weight), {}
            return self.best
        if self.score > _ENOUGH or self.idle >= _PATIENCE:
            return None
        for skip in self.open:
            if skip not in self.on_text:
                return skip
        for _ in range(_DRAWS if len(self.proposed) < _TRIES else 0):
            skip = self._neighbour() if len(self.proposed) % 2 else self._random()
            if skip not in self.proposed:
                self.proposed.add(skip)
                return skip
        if not self.open and not any(part.weight for part in self.on_text.values()):
            self._end()  # nearly all sets were tried
        return None

    def record(self, skip: Skip, score: float) -> None:
        """Records the score of a set from `next`."""
        if skip == self.best:
            self.score = score
            return
        assert self.text is not None, "next has named it"
        assert self.score is not None, "the best is scored first"
        weight = self.text[1]
        self.on_text[skip] = Tally(weight * (score - self.score), weight)
        total = self.on_text[skip].plus(self.open.get(skip, Tally()))
        if total.weight < 1:
            return
        self.idle += 1
        self.on_text[skip] = Tally()  # judged; not scored on this text again
        self.open.pop(skip, None)
        if total.gain > 0:
            self.best, self.score, self.idle = skip, score, 0
            self.open, self.on_text = {}, {}
        if total.gain > 0 or self.idle == _PATIENCE:
            self._write()

    def _end(self) -> None:
        if self.idle < _PATIENCE:
            self.idle = _PATIENCE
            self._write()

    def _read(self, file: SkipFile) -> None:
        """Uses the result of an earlier search if it is in this search's space."""
        values = file.read() or {}
        try:
            skip = frozenset((int(layer), str(part)) for layer, part in values["skip"])
            idle = int(values["idle"])
        except (KeyError, TypeError, ValueError):
            return
        if len(skip) == len(self.best) and skip <= set(self.blocks):
            self.best, self.idle = skip, idle
            self.proposed.add(skip)
            # The seed depends on the set found, so that candidates differ from those of the earlier search.
            self.rng = np.random.RandomState(zlib.crc32(repr(sorted(skip)).encode()))

    def _write(self) -> None:
        if self.file is not None:
            self.file.write({"skip": sorted(self.best), "idle": self.idle})

    def _random(self) -> Skip:
        return frozenset(self.blocks[i] for i in self.rng.permutation(len(self.blocks))[: len(self.best)])

    def _neighbour(self) -> Skip:
        out = [block for block in self.blocks if block not in self.best]
        if not out or not self.best:
            return self.best
        removed = sorted(self.best)[self.rng.randint(len(self.best))]
        return self.best - {removed} | {out[self.rng.randint(len(out))]}


_TRAITS = frozenset({Trait.TAKES_SHAPE, Trait.TAKES_LENGTH})


@register("layerskip", exact="greedy", checked="joint")
class LayerSkip(Drafter):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"ratio": (0.45, 0.3, 0.6), "k": (5, 3)}

    ratio: Annotated[float, "share of the inner layers' sub-blocks that is skipped"] = 0.45
    skip: Annotated[Literal["uniform", "search"], "whole layers evenly spread, or what the search finds"] = "uniform"
    k: Annotated[int, "tokens drafted, which is how deep a tree grows"] = 5
    context: Annotated[int, "generated tokens on which a choice is scored, collected over several short requests"] = 32
    disk: Annotated[bool, "keep what a search finds in the cache folder, where later processes begin with it"] = False

    @property
    def provides(self) -> frozenset[Trait]:
        return _TRAITS | {Trait.FEEDS_TEXT_AGAIN} if self.skip == "search" else _TRAITS

    def __post_init__(self) -> None:
        self.require("ratio", least=0, most=1)
        self.require("k", "context", least=1)

    def check(self, sampler: SpeculativeSampler) -> None:
        if self.disk and self.skip != "search":
            raise SpecError(
                "layerskip: disk=true needs skip=search, whose result it keeps", hint="write skip=search,disk=true"
            )

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> float | None:
        """The share of sub-blocks that a forward runs."""
        return 1 - len(uniform(target.layers, self.ratio)) / (2 * target.layers)

    def start(self, context: DecodeContext) -> Skipping:
        layers = context.model.layers
        state = Skipping(context, context.model, context.cache, skip=uniform(layers, self.ratio))
        if self.skip == "search":
            sampling = context.request.temperature and Trait.SEEDED not in context.sampler.accept.provides
            state.search = (
                Search(layers, self.ratio)
                if sampling
                else shared_search(context.model, self.ratio, self.context, disk=self.disk)
            )
            state.skip = state.search.best
        return state

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: Skipping) -> Draft:
        tries = state.improve(self.context)
        draft = state.draft(self.k, remaining, uniforms)
        return replace(draft, forwards=draft.forwards + tries)


class Skipping(DraftModelState):
    """The state of the target without some sub-blocks."""

    search: Search | None = None

    @property
    def accepts_rows(self) -> bool:
        """Rows cannot join during a search, which scores the rows it began with."""
        return self.search is None

    def improve(self, context: int) -> int:
        """Scores one candidate of the search and returns the number of forwards it took.

        Rows need `context` generated tokens, or a half or a quarter of them, and free slots to feed them to.
        """
        text, search = self.context.text, self.search
        if search is None:
            return 0
        for count in (context, max(context // 2, 1), max(context // 4, 1)):
            enough = (text.length - text.prompt >= count) & (text.length - 1 + count <= self.cache.reach)
            if enough.any():
                break
        rows = np.flatnonzero(enough)
        prompts = tuple(text.row(at)[: text.prompt[at]].tobytes() for at in rows.tolist())
        skip = search.next(prompts, count / context) if prompts else None
        if skip is None:
            self.skip = search.best
            return 0
        search.record(skip, self._match(skip, rows, count))
        self.skip = search.best
        return 1

    def _match(self, skip: Skip, rows: np.ndarray, context: int) -> float:
        """The share of the first generated tokens of `rows` that are the argmax of the target without `skip`."""
        text, device = self.context.text, self.context.text.device
        which = upload(rows, device)
        first = upload(text.prompt[rows] - 1, device)[:, None]
        free = upload(text.length[rows] - 1, device)[:, None]  # slots after the committed ones
        order = torch.arange(context, device=device).expand(len(rows), -1)
        slot = torch.arange(int(text.length[rows].max()) - 1 + context, device=device)
        rank = slot - free
        fed = (rank[:, None] >= 0) & (rank[:, None] <= order[..., None])
        tokens = text.tokens[which]
        plan = Plan(
            tokens=tokens.gather(1, first + order),
            positions=first + order,
            slots=free + order,
            visible=Visible.mask((slot < first)[:, None] | fed),
            lengths=free[:, 0] + context,
            want=order,
            skip=skip,
            rows=which,
        )
        guess = argmax(self.model.run(plan, self.cache).logits())
        return float((guess == tokens.gather(1, first + order + 1)).float().mean())
