"""Shared by drafters with a window: guesses that shift with the committed text, and fresh guesses after them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...host_transfer import download, upload
from ...traits import Reasons, Trait, Why
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, Uniforms
from .image_grid import columns, copy_left, copy_up
from .text_history import repeated

Init = Literal["random", "prompt", "repeat", "ngram", "left", "up"]


def fresh(init: Init, guesses: Tensor, known: np.ndarray, context: DecodeContext, uniforms: Uniforms) -> Tensor:
    """`guesses` [B, K] for the positions after each row's text, with fresh ones from known[b] on.

    random: any token; prompt: any token of the prompt; repeat: the token before; ngram: what followed an earlier
    occurrence of the last two tokens, or of the last one; left, up: the image token there, which may be a guess, and
    a random one outside of the image. Positions with one allowed token get that token. No fresh guess depends on the
    target's predictions for these positions, so each is a point mass, given its history.
    """
    if (known >= guesses.shape[1]).all():
        return guesses
    filled = _guesses(init, guesses, known, context, uniforms)
    forced = context.allowed.forced
    if forced is None:
        return filled
    offset = torch.arange(filled.shape[1], device=filled.device)
    length, first = (upload(each, filled.device)[:, None] for each in (context.text.length, known))
    only = forced.gather(1, (length + offset).clamp(max=forced.shape[1] - 1))
    return torch.where((offset >= first) & (only >= 0), only, filled)


def refuse_without_image(name: str, init: Init | None, model: LanguageModel) -> None:
    """Raises SpecError for an init that needs an image's token grid, if the model generates none."""
    if init in ("left", "up"):
        columns(model, f"{name}: init={init}", "init=repeat copies the token before")


def _guesses(init: Init, guesses: Tensor, known: np.ndarray, context: DecodeContext, uniforms: Uniforms) -> Tensor:
    text, width = context.text, guesses.shape[1]
    if init == "ngram":
        return _continued(guesses, known, context)
    offset = torch.arange(width, device=guesses.device)
    first = upload(known, guesses.device)[:, None]
    if init == "repeat":
        before = torch.cat((text.last[:, None], guesses), 1)
        return before.gather(1, torch.minimum(offset + 1, first))
    positions = offset + upload(text.length, guesses.device)[:, None]
    random = random_tokens("prompt" if init == "prompt" else "random", positions, context, uniforms)
    if init == "left" or init == "up":
        copied = copy_left if init == "left" else copy_up
        return copied(text, guesses, known, random, columns(context.model, f"init={init}", ""))
    return torch.where(offset < first, guesses, random)


def random_tokens(
    init: Literal["random", "prompt"], positions: Tensor, context: DecodeContext, uniforms: Uniforms
) -> Tensor:
    """[B, K] tokens for `positions` [B, K]: uniform over the vocabulary, or over each row's prompt."""
    u = uniforms.noise(positions, "init", 1)[..., 0]
    if init == "random" or context.request.conditions:  # the prompt of an image has no tokens
        return (u * context.model.vocab_size).long()
    text, device = context.text, positions.device
    tokens = text.tokens if device == text.device else torch.from_numpy(text.host)
    return tokens.gather(1, (u * upload(text.prompt, device)[:, None]).long())


def slice_from(values: Tensor, first: np.ndarray, width: int) -> Tensor:
    """[B, width, ...]: `values` [B, T, ...] of each row from first[b] on, repeating the last one."""
    rows = torch.arange(len(values), device=values.device)[:, None]
    index = np.minimum(first[:, None] + np.arange(width), values.shape[1] - 1)
    return values[rows, upload(index, values.device)]


def refuse_narrow(name: str, window: int) -> None:
    """Raises SpecError for a window without a guess."""
    if window < 2:
        raise SpecError(f"{name}: window must be at least 2, got {window}", hint="it includes the last committed token")


def _continued(guesses: Tensor, known: np.ndarray, context: DecodeContext) -> Tensor:
    """Guesses of init=ngram, on the host."""
    filled = download(guesses).copy()
    for at in range(len(filled)):
        tokens = np.concatenate((context.text.row(at), filled[at, : known[at]]))
        missing = filled.shape[1] - int(known[at])
        if missing > 0:
            filled[at, known[at] :] = repeated(tokens, _copy_source(tokens), missing)
    return upload(filled, guesses.device)


def _copy_source(tokens: np.ndarray) -> int:
    """The index after the latest earlier occurrence of the last two tokens, or of the last one; else the last."""
    before = np.flatnonzero(tokens[:-1] == tokens[-1])
    if not len(before):
        return len(tokens) - 1
    pair = before[(before > 0) & (tokens[before - 1] == tokens[-2])] if len(tokens) > 1 else before[:0]
    return int((pair if len(pair) else before)[-1]) + 1


@dataclass(slots=True)
class Iterate:
    """The latest guesses of each row, and the progress of its block. Arrays are on the host."""

    tokens: Tensor  # [B, K] int64: guesses for the positions after the text
    known: np.ndarray  # [B] the number of guesses from the last iteration; the others are fresh
    open: np.ndarray  # [B] positions of the block that are not committed; 0: the next round begins another block
    preaccepted: np.ndarray  # [B] guesses that the next round commits untested
    iterations: np.ndarray  # [B] forwards of the block so far


@dataclass(frozen=True)
class JacobiWindow(Drafter):
    """Guesses for a window, all of which are replaced by the target's picks in every round."""

    name: ClassVar[str]  # its name in the registry

    window: Annotated[int, "tokens fed in a forward, including the last committed one"] = 16
    policy: Annotated[Literal["sliding", "block"], "block: a window is finished before the next one begins"] = "sliding"
    init: Annotated[
        Init, "fresh guesses: any token, a prompt token, the token before, an n-gram's next, image token left, up"
    ] = "prompt"
    exit_iterations: Annotated[
        int | None, "policy=block: accept guesses untested after this many iterations; none: never"
    ] = None
    exit_tokens: Annotated[int, "policy=block: accept guesses untested if at most this many tokens changed"] = 0

    def __post_init__(self) -> None:
        name = self.name
        refuse_narrow(name, self.window)
        if self.exit_iterations is not None and self.exit_iterations < 1:
            raise SpecError(f"{name}: exit_iterations must be at least 1 or none, got {self.exit_iterations}")
        self.require("exit_tokens", least=0)
        if self.exits and self.policy != "block":
            raise SpecError(
                f"{name}: exit_iterations and exit_tokens need policy=block, not a sliding window",
                hint="add policy=block",
            )

    @property
    def exits(self) -> bool:
        """Whether a block may be accepted before it converges."""
        return self.exit_iterations is not None or self.exit_tokens > 0

    @property
    def exact(self) -> str:
        return "relaxed" if self.exits else "greedy"

    @property
    def requires(self) -> Reasons:
        early = Why("{me}: an early exit commits guesses that were not sampled", "accept with greedy or match")
        return {Trait.FOLLOWS_PICK: early} if self.exits else {}

    def width(self, model: LanguageModel) -> int:
        refuse_without_image(self.name, self.init, model)
        # The forward that commits the guesses of an early exit is the first one of the next block.
        return 2 * self.window - 1 if self.exits else self.window

    def start(self, context: DecodeContext) -> Iterate:
        none = np.zeros_like(context.text.length)
        tokens = torch.zeros(len(none), self.width(context.model) - 1, dtype=torch.int64, device=context.text.device)
        return Iterate(tokens, none, none, none, none)

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: Iterate) -> Draft:
        begins = state.open == 0
        counts = np.full_like(remaining, self.window - 1)
        if self.policy == "block":
            counts = np.where(begins, state.preaccepted + counts, state.open)
        counts = np.minimum(counts, remaining)
        most = int(counts.max(initial=0))
        guesses = fresh(self.init, state.tokens[:, :most], state.known, context, uniforms)
        state.iterations = np.where(begins, 1, state.iterations + 1)
        return Draft.chain(
            context.text, guesses, counts, preaccepted=self._preaccepted(state, most) if self.exits else None
        )

    def _preaccepted(self, state: Iterate, most: int) -> Tensor:
        node = torch.arange(most + 1, device=state.tokens.device)
        return (node > 0) & (node <= upload(state.preaccepted, node.device)[:, None])

    def observe(self, outcome: RoundResult, context: DecodeContext, state: Iterate) -> None:
        draft, gained = outcome.draft, outcome.gained
        pick = outcome.distributions.pick if outcome.verdict.pick is None else outcome.verdict.pick
        state.tokens = slice_from(pick, gained, state.tokens.shape[1])
        state.known = np.maximum(draft.sizes - gained, 0)
        if self.policy == "sliding":
            return
        # The pick after the block's last position is the first guess of the next block.
        state.open = np.maximum(draft.sizes - 1 - gained, 0)
        leaves = (state.open > 0) & self._exits_early(draft, pick, gained, state.iterations)
        state.preaccepted = np.where(leaves, state.open, 0)
        state.open = np.where(leaves, 0, state.open)
        state.known = np.where(state.open > 0, state.open, state.known)

    def _exits_early(self, draft: Draft, pick: Tensor, gained: np.ndarray, iterations: np.ndarray) -> np.ndarray:
        """[B] bool: rows whose block is accepted early."""
        late = np.zeros_like(iterations, dtype=bool)
        if self.exit_iterations is not None:
            late = iterations >= self.exit_iterations
        if self.exit_tokens > 0:
            node = np.arange(1, draft.width)
            open_ = (node >= gained[:, None]) & (node < draft.sizes[:, None])  # from the rejected one on
            changed = download(draft.tokens[:, 1:] != pick[:, :-1]) & open_
            late = late | (changed.sum(1) <= self.exit_tokens)
        return late
