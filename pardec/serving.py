"""Prompts of any number through one batch: a row that is done leaves, and the next prompt takes its place.

So throughput does not fall to the slowest row of a batch. A row's tokens are those of `generate` alone with its seed.
A masked model takes new rows at any step, each at the start of its own first block; an autoregressive one feeds their
prompts in a forward of their own and then verifies all rows together. What cannot be joined while it is under way waits
until the batch has drained, and `Serving.waits` says why: pictures of vectors, samplers whose memory is of all rows at
once, `allowed`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from pardec.models.conditioned import Prefix
from pardec.models.errors import SpecError, did_you_mean
from pardec.requests import BLOCK, Call
from pardec.result import Result
from pardec.samplers.contracts import Allowed, Request, Sampler
from pardec.samplers.events import Finished, RowFinished
from pardec.samplers.loops.masked import MaskedLoop
from pardec.samplers.loops.verify import VerifyLoop
from pardec.samplers.rng import Seats, row_seed
from pardec.samplers.verifying import Speculation
from pardec.settings import Settings
from pardec.vector_requests import VectorCall

if TYPE_CHECKING:
    from PIL.Image import Image

    from pardec.api import Model

OWN = ("prompt", "messages", "input_ids", "label", "prompt_embeds", "seed", "max_new_tokens", "template", "allowed")
_NOT_SHARED = ("input_ids", "label", "prompt_embeds", "num_images", "source", "callback")

Loop = MaskedLoop | VerifyLoop


@dataclass(frozen=True, eq=False)
class Served:
    """A finished row: which prompt it is of, from 0, and its result, of one row.

    `result.timing` runs from the row's admission to its last commit, beside others. Its `padding` is 0: what batches
    feed beside their rows is nobody's.
    """

    index: int
    result: Result

    @property
    def text(self) -> str | None:
        return None if self.result.text is None else self.result.text[0]

    @property
    def tokens(self) -> list[int]:
        return self.result.tokens[0]

    @property
    def finish(self) -> str:
        return self.result.finish[0]

    @property
    def nfe(self) -> int:
        return self.result.nfe[0]

    @property
    def seed(self) -> int:
        return self.result.seeds[0]

    @property
    def image(self) -> Image | None:
        return None if self.result.images is None else self.result.images[0]


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """One prompt, checked: the call that decodes it alone, and the request as it is decoded beside others."""

    index: int
    call: Call | VectorCall
    request: Any
    began: float

    @property
    def kind(self) -> tuple[Any, ...]:
        """Rows of one kind can stand in one batch."""
        if isinstance(self.call, VectorCall):
            return ()
        r = self.request
        shared = (r.block_length, r.absolute, r.temperature, r.top_k, r.top_p, r.cfg, r.cfg_interval, r.stop_ids)
        return (*shared, bool(r.conditions), r.allowed is None)


class Serving(Iterator[Served]):
    """Finished rows, in the order in which they finish. Close it, or leave the `with`, to stop early.

    Attributes:
        waits: why the rows of the batch under way cannot be replaced one by one, so that it drains before the next
            begins; None where they are.
        rows, tokens, forwards: what is finished: rows, their generated tokens, and the forwards that the rows took
            part in.
        seconds: spent on it, prompts read and texts made included; what happens between two rows is not.
    """

    def __init__(
        self,
        model: Model,
        prompts: Iterable[Any],
        batch_size: int,
        arguments: Mapping[str, Any],
        guard: Callable[[], AbstractContextManager[None]],
    ) -> None:
        if isinstance(prompts, str | Mapping) or not isinstance(prompts, Iterable):
            raise SpecError(
                f"prompts are an iterable of prompts, got {type(prompts).__name__}",
                hint="one prompt goes to generate; a list of one is served, too",
            )
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise SpecError(f"batch_size is a whole number of at least 1, got {batch_size!r}", hint="batch_size=8")
        for name in _NOT_SHARED:
            if name in arguments:
                own = name in OWN
                raise SpecError(
                    f"serve_batch takes no {name}= for all prompts",
                    hint=f'give it with each, as {{"{name}": ...}}' if own else f"leave {name} out",
                )
        settings = Settings.of(arguments)
        if isinstance(settings.seed, Sequence):
            raise SpecError(
                "seed is one number for all prompts", hint='a prompt has its own as {"prompt": ..., "seed": 7}'
            )
        self.model, self.batch_size, self.arguments, self._guard = model, batch_size, dict(arguments), guard
        self._seed, self._block = int(settings.seed), min(BLOCK, settings.max_new_tokens)
        facts = None if model.family != "masked" else model.language_model.facts
        self._blocks_grow = (  # a row that ends before its block does stands in a longer one just as well
            facts is not None
            and facts.attention != "block-causal"
            and settings.block_length is None
            and settings.block_align == "prompt"
        )
        self.waits: str | None = None
        self.rows = self.tokens = self.forwards = 0
        self.seconds = 0.0
        self._sampler: Any = None
        self._queue = self._read(prompts)
        self._next: _Row | None = None  # read, and of another kind than the batch under way
        self._error: Exception | None = None  # of a prompt; told when the rows before it are done
        self._served = self._serve()

    def __iter__(self) -> Serving:
        return self

    def __next__(self) -> Served:
        began = time.perf_counter()
        try:
            with self._guard():
                served = next(self._served)
        finally:
            self.seconds += time.perf_counter() - began
        self.rows += 1
        self.tokens += served.result.timing.tokens
        self.forwards += served.nfe
        return served

    def close(self) -> None:
        """Frees what the batch under way holds; nothing more is read."""
        self._served.close()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- prompts ---

    def _read(self, prompts: Iterable[Any]) -> Iterator[_Row]:
        """Each prompt, checked when its turn comes."""
        for index, item in enumerate(prompts):
            yield self._prepared(index, item)

    def _prepared(self, index: int, item: Any) -> _Row:
        given = self._fields(index, item)
        seed = given.pop("seed", None)
        arguments = {**self.arguments, **given, "seed": [row_seed(self._seed, index) if seed is None else seed]}
        try:
            call = self.model.prepare(**arguments)
        except SpecError as error:
            raise SpecError(f"prompt {index} of those served: {error.message}", hint=error.hint) from error
        if self._sampler is None:
            self._sampler = call.sampler
        call = replace(call, sampler=self._sampler)
        request: Any = call.request
        if self._blocks_grow:
            request = replace(request, block_length=max(request.block_length, self._block))
        return _Row(index, call, request, time.perf_counter())

    def _fields(self, index: int, item: Any) -> dict[str, Any]:
        """What one prompt says, as arguments of `prepare`."""
        if not isinstance(item, Mapping):
            return self._fields(index, {"prompt": item})
        for name in item:
            if name not in OWN:
                raise SpecError(
                    f"prompt {index} of those served has a field {name!r}{did_you_mean(str(name), OWN)}",
                    hint=f"it takes {', '.join(OWN)}; all else is for all prompts",
                )
        given = dict(item)
        if isinstance(given.get("prompt"), list | tuple) and not _is_chat(given["prompt"]):
            raise SpecError(f"prompt {index} of those served is a list", hint="each is one text or one conversation")
        if "prompt" in given and _is_chat(given["prompt"]):
            given["prompt"] = [given["prompt"]]
        if "messages" in given:
            given["prompt"] = [given.pop("messages")]
        if "input_ids" in given:
            ids = given["input_ids"]
            given["input_ids"] = ids if isinstance(ids, torch.Tensor) and ids.ndim == 2 else [ids]
        return given

    def _take(self, most: int, kind: tuple[Any, ...] | None = None) -> list[_Row]:
        """Up to so many next prompts that can stand together, with others of this kind."""
        taken: list[_Row] = []
        while len(taken) < most:
            row = self._next or self._pull()
            if row is None:
                break
            self._next = None
            kind = row.kind if kind is None else kind
            if row.kind != kind:
                self._next = row
                break
            taken.append(replace(row, began=time.perf_counter()))
        return taken

    def _pull(self) -> _Row | None:
        if self._error is not None:
            return None
        try:
            return next(self._queue, None)
        except Exception as error:
            self._error = error
            return None

    # --- decoding ---

    def _serve(self) -> Generator[Served, None, None]:
        while taken := self._take(self.batch_size):
            vectors = isinstance(taken[0].call, VectorCall)
            with closing(cast("Any", self._drawn(taken) if vectors else self._batch(taken))) as served:
                yield from served
        if self._error is not None:
            raise self._error

    def _drawn(self, taken: list[_Row]) -> Iterator[Served]:
        """Pictures of vectors, a whole batch at a time."""
        from pardec.comparison.worker import one_row

        self.waits = "pictures of vectors are drawn a whole batch at a time"
        first = cast("VectorCall", taken[0].call)
        labels = tuple(label for row in taken for label in row.request.labels)
        call = replace(first, request=replace(first.request, labels=labels))
        call = call.seeded([row.call.seeds[0] for row in taken])
        began = time.perf_counter()
        *_, last = self.model.run(call, steps=False)
        assert isinstance(last, Finished), "a loop ends with Finished"
        whole = self.model.result(call, last, time.perf_counter() - began)
        for at, row in enumerate(taken):
            yield Served(row.index, one_row(whole, at))

    def _batch(self, taken: list[_Row]) -> Iterator[Served]:
        """A batch, from its first rows until nothing is left that can join it."""
        kind, seats = taken[0].kind, list(taken)
        loop = self._opened(taken)
        try:
            yield from self._ended(loop, seats, loop.over())
            first = True
            while len(loop.rows):
                _advance(loop)
                if first:
                    self.waits, first = loop.alone(), False
                over = loop.over()
                if not over.any():
                    continue
                for end in list(loop.leave(over)):
                    yield self._row(loop, seats[end.row], end)
                free = np.flatnonzero(over)
                while len(free) and self.waits is None and (more := self._take(len(free), kind)):
                    other = self._opened(more, loop)
                    try:
                        free = yield from self._join(loop, seats, free, other, more)
                    finally:
                        other.memory.clear()
                if len(free):
                    loop.keep(np.setdiff1d(np.arange(len(loop.rows)), free))
        finally:
            loop.memory.clear()  # states may hold the scene, which reaches them

    def _join(
        self, loop: Loop, seats: list[_Row], free: np.ndarray, other: Loop, more: list[_Row]
    ) -> Generator[Served, None, np.ndarray]:
        """Lets the rows of `other` in; yields those that are done at once, and returns the places that stay free."""
        if isinstance(other, VerifyLoop):
            yield from self._ended(other, more, other.over())
            if len(other.rows):
                other.round()  # their prompts
        yield from self._ended(other, more, other.over())
        where, free = free[: len(other.rows)], free[len(other.rows) :]
        if len(where):
            for number, old in zip(loop.rows[where].tolist(), other.rows.tolist(), strict=True):
                seats[number] = more[old]
            loop.put(where, cast("Any", other))
        return free

    def _ended(self, loop: Loop, seats: list[_Row], over: np.ndarray) -> Iterator[Served]:
        """The rows that are done; they leave."""
        if over.any():
            for end in list(loop.leave(over)):
                yield self._row(loop, seats[end.row], end)
            loop.keep(np.flatnonzero(~over))

    def _opened(self, taken: list[_Row], beside: Loop | None = None) -> Loop:
        """A loop for these rows, which may join the one that they are to stand `beside`."""
        request, network = _together(taken), self.model.language_model
        if isinstance(self._sampler, Speculation):
            return VerifyLoop(network, self._sampler, request)
        assert isinstance(self._sampler, Sampler), "the family says so"
        columns = beside.canvas.length if isinstance(beside, MaskedLoop) else 0
        return MaskedLoop(network, self._sampler, request, columns=columns)

    def _row(self, loop: Loop, row: _Row, end: RowFinished) -> Served:
        seconds = time.perf_counter() - row.began
        return Served(row.index, self.model.result(row.call, loop.finished(end.row), seconds))


def _advance(loop: Loop) -> None:
    if isinstance(loop, VerifyLoop):
        loop.round()
    else:
        loop.step()


def _together(rows: Sequence[_Row]) -> Request:
    """The requests of these rows as one."""
    first: Request = rows[0].request
    each: list[Request] = [row.request for row in rows]
    return replace(
        first,
        canvases=tuple(canvas for one in each for canvas in one.canvases),
        prompts=tuple(start for one in each for start in one.prompts),
        source=Seats([row.call.seeds[0] for row in rows]),
        conditions=tuple(condition for one in each for condition in one.conditions),
        prefix=_prefixes([one.prefix for one in each if one.prefix is not None]),
        allowed=_allowed([one.allowed for one in each if one.allowed is not None]),
    )


def _prefixes(each: list[Prefix]) -> Prefix | None:
    if not each:
        return None
    without = [one.without for one in each if one.without is not None]
    said = tuple(states for one in each for states in one.states)
    return Prefix(said, tuple(states for one in without for states in one) if without else None)


def _allowed(each: list[Allowed]) -> Allowed | None:
    """Set 0, which allows everything, is one for all."""
    if not each:
        return None
    sets, at = [each[0].sets[:1]], []
    for one in each:
        before = sum(map(len, sets)) - 1
        at += [torch.where(places > 0, places + before, 0) for places in one.at]
        sets.append(one.sets[1:])
    return Allowed(torch.cat(sets), tuple(at))


def _is_chat(item: Any) -> bool:
    return isinstance(item, Sequence) and not isinstance(item, str) and all(isinstance(one, Mapping) for one in item)
