"""Speculative Jacobi decoding in several rows of an image at once; a row begins when the one above is ahead.

Parallel Jacobi Decoding, https://arxiv.org/abs/2606.05703

    row r + 1 begins once c_r >= lag, c_r tokens of row r being accepted;  its window: min(window, c_(r-1) - c_r) tokens
    a draft attends to the accepted tokens before it in raster order and to the drafts before it in its row
    accepted from left to right  iff  u q_i(x_i) < p_i(x_i),  q_i and p_i the distributions of this round and the last
    first incomplete row: as `sjd`;  other rows: the first rejected token is redrawn from norm([p_i - q_i]+), as there,
    or, with wait=true, which is published, from p_i as a draft of the next round, so that the row waits

The loop commits text without gaps, so that accepted tokens of later rows are fed again until the rows before them are
complete, and then pass without a test, also where the filters of a distribution that sees the whole row above leave
them out. The first incomplete row has no last draft while another one waits: the token after the path completes it.

With `joint`, which is not published, a draft attends to all drafts before it, those of the rows above included, as in
the window of `sjd`. What a row accepts then counts in the same round: the row below may go on to where the drafts that
it attended to were accepted, and not redrawn, so that several rows can end in one forward. Pays with a window of many
rows. Tokens above and to the right, which a draft of `pjd` does not see before they are accepted, are guesses there.
With `tree=3x3` the first three positions have three tokens each, as in `sjd`; accepted cells have one. Where the path
leaves the first tokens, the drafts after it attended to others: rows below get no farther than it.

Not in the paper's summary, and decided here: before its left neighbour exists, the first token of a row follows the
newest token of the row above, in the neighbour's place; a fresh draft copies the token to its left; drafts after a
rejection are coupled with the old ones, as by `sjd`. Waiting costs each row a round at its start, and on images of 12
rows more forwards than `sjd` takes. Images whose rows end with a token of their own are refused.

A row ends a round after the one above at the earliest, since c_r cannot pass what c_(r-1) was a round before. So R rows
take at least R - 1 forwards more than the first row does, however good the drafts are, and `sjd` some three per row.
With `joint` there is no such bound.
Exact: no: a token is sampled without those above it to the right. With a lag of a whole row it is `sjd`; with `joint`
it is then exact too, and `sjd` but for the first guess of a row, which is the one above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...host_transfer import download, upload
from ...limits import check_nodes
from ...registry import register
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, Uniforms
from .image_grid import layout_of
from .jacobi_window import fresh, refuse_narrow
from .sjd import at_nodes, coupled_sample, siblings, tree_sides, window_nodes, window_tree, with_siblings

_FIXED, _STAND_IN, _DRAFT = range(3)  # kinds of nodes after node 0, in the order in which they stand


@dataclass(slots=True)
class Grid:
    """The image of each row of the batch, by cell; arrays are on the host."""

    accepted: np.ndarray  # [B, N] bool
    tokens: Tensor  # [B, N] int64: accepted ones and drafts
    p: Tensor  # [B, N, V] float32: the newest distribution
    q: Tensor  # [B, N, V] float32: the one that the draft was sampled from
    point: Tensor  # [B, N] bool: the draft is a point mass
    fed: np.ndarray  # [B, T] the cell of each node of the last round, -1 for padding
    drafted: np.ndarray  # [B, N] bool: cells of drafts of the last round
    waiting: np.ndarray  # [B, N] bool: of these, those below the first incomplete row
    known: np.ndarray  # [B, N] bool: predicted in the last round
    departed: np.ndarray  # [B] joint: the first cell of the last path whose token no draft after it attended to


@register("pjd", checked="hand")
class Pjd(Drafter):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"lag": (None, 4, 8)}

    lag: Annotated[int | None, "accepted tokens of a row when the next row begins; none: a quarter of a row"] = None
    window: Annotated[
        int, "tokens fed of a row in a forward, the last accepted one included; with joint: of the image"
    ] = 32
    wait: Annotated[bool, "as published: a later row gains no token in place of a rejected one"] = False
    joint: Annotated[bool, "drafts attend to those of the rows above, and several rows may end in one forward"] = False
    tree: Annotated[str | None, "with joint: tokens per position x positions, such as 3x3; none: one token each"] = None

    def __post_init__(self) -> None:
        self.require("lag", least=1)
        if self.joint and self.wait:
            raise SpecError(
                "pjd: wait=true needs joint=false: joint=true redraws rejected tokens", hint="leave wait out"
            )
        if self.sides[0] > 1 and not self.joint:
            raise SpecError(
                f"pjd: tree={self.tree} needs joint=true: without it each row of the image has a window of its own",
                hint="add joint=true",
            )
        refuse_narrow("pjd", self.window)

    def width(self, model: LanguageModel) -> int:
        rows, columns = self._grid_sides(model)
        self._lag(model)
        nodes = max(self.window, rows * (columns + 1) + 1) + siblings(self.sides)
        check_nodes("pjd", nodes)
        return nodes

    @property
    def sides(self) -> tuple[int, int]:
        """The tree's tokens per position, and the number of positions that have them."""
        return tree_sides("pjd", self.tree)

    def _grid_sides(self, model: LanguageModel) -> tuple[int, int]:
        layout = layout_of(model, "pjd", "text has no rows: draft with lookup or sjd")
        if layout.row_end is not None or layout.closing or layout.stride != layout.columns:
            raise SpecError(
                f"pjd: rows of {model.name} end with an end-of-row token, which pjd cannot draft",
                hint="draft with zipar or sjd",
            )
        return layout.rows, layout.columns

    def _lag(self, model: LanguageModel) -> int:
        wide = self._grid_sides(model)[1]
        if self.lag is not None and self.lag > wide:
            raise SpecError(
                f"pjd: lag={self.lag} is more than the {wide} tokens of a row of {model.name}",
                hint=f"lag={wide} is sjd",
            )
        return self.lag or max(1, wide // 4)

    def start(self, context: DecodeContext) -> Grid:
        batch, cells, device = len(context.text), int(np.prod(self._grid_sides(context.model))), context.text.device
        none = np.zeros((batch, cells), dtype=bool)
        tokens = torch.zeros(batch, cells, dtype=torch.int64, device=device)
        p = torch.zeros(batch, cells, context.model.vocab_size, device=device)
        fed, departed = np.full((batch, 1), -1), np.full(batch, cells)
        return Grid(none, tokens, p, p.clone(), tokens.bool(), fed, none, none, none, departed)

    # --- a round ---

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: Grid) -> Draft:
        text, device = context.text, context.text.device
        if self.joint:
            return self._propose_joint(context, remaining, uniforms, state)
        rows, wide = self._grid_sides(context.model)
        rejected = self._accept(context, uniforms, state)
        cells = np.arange(rows * wide)
        last = (text.length - text.prompt - 1)[:, None]  # the cell of node 0
        fixed = state.accepted & (cells > last)
        stand_in, draft, waiting = self._layout(state.accepted, last, remaining, rows, wide, self._lag(context.model))
        redrawn = draft & state.known
        self._redraw(context, uniforms, state, redrawn, redrawn & state.drafted & ~rejected)
        self._fresh(context, uniforms, state, fixed | redrawn, draft & ~redrawn, waiting, remaining)
        state.drafted, state.waiting = draft, draft & waiting
        # Nodes: node 0, accepted cells, stand-ins, drafts, each in raster order.
        kinds = np.concatenate((fixed, stand_in, draft), 1)
        sizes = kinds.sum(1) + 1
        order = np.argsort(~kinds, axis=1, kind="stable")[:, : int(sizes.max()) - 1]
        real = np.arange(1, order.shape[1] + 1) < sizes[:, None]
        kind, cell = order // len(cells), order % len(cells)
        state.fed = np.concatenate((last, np.where(real, cell, -1)), 1)
        above = (cell // wide) * wide + wide - 1  # a stand-in has the last cell of the row above
        newest = above - wide + np.take_along_axis(_counts(state.accepted, wide), cell // wide, 1)
        source = upload(np.where(kind == _STAND_IN, newest, cell), device)
        tokens = torch.cat((text.last[:, None], state.tokens.gather(1, source)), 1)
        own = upload(np.concatenate((np.zeros_like(last, dtype=bool), real & (kind == _DRAFT)), 1), device)
        where = torch.cat((torch.zeros_like(source[:, :1]), source), 1)
        q = state.q.gather(1, where[..., None].expand(-1, -1, state.q.shape[-1])) * own[..., None]
        point = state.point.gather(1, where) & own
        chains = not (waiting & (fixed | draft)).any() and not fixed.any()
        if chains:
            return Draft(tokens, sizes, text.length - 1, q=q, is_point_mass=point)
        number = np.zeros(kinds.shape, dtype=np.int64)
        np.put_along_axis(number, order, np.where(real, np.arange(1, order.shape[1] + 1), 0), 1)
        parents = self._parents(kinds, number, kind, cell, last)
        depth = np.where(real, cell - last, 0)
        tested = real & (kind != _STAND_IN) & ~np.take_along_axis(waiting, cell, 1)
        zero = np.zeros_like(last)
        return Draft(
            tokens,
            sizes,
            text.length - 1,
            upload(np.concatenate((zero - 1, np.where(real, parents, 0)), 1), device),
            upload(np.concatenate((zero, depth), 1), device),
            levels=int(tested.sum(1).max(initial=0)),
            verify=upload(np.concatenate((zero > 0, tested), 1), device),
            preaccepted=upload(np.concatenate((zero > 0, tested & (kind == _FIXED)), 1), device),
            q=q,
            is_point_mass=point,
        )

    def _accept(self, context: DecodeContext, uniforms: Uniforms, state: Grid) -> np.ndarray:
        """Accepts drafts of the rows that wait, by the last forward.

        Returns [B, N] bool: the first rejected one of each row.
        """
        if not state.waiting.any():
            return state.waiting
        cells, wide = np.arange(state.accepted.shape[1]), self._grid_sides(context.model)[1]
        passed = self._passed(context, uniforms, state)
        run = (state.accepted | (passed & state.waiting)).reshape(len(passed), -1, wide)
        run = np.logical_and.accumulate(run, 2).reshape(passed.shape)
        state.accepted = state.accepted | (run & state.waiting)
        counts = _counts(state.accepted, wide)
        next_cell = (cells % wide == np.repeat(counts, wide, 1)) & state.known
        rejected: np.ndarray = next_cell & state.waiting
        if self.wait:
            return rejected
        above = np.repeat(np.concatenate((counts[:, :1] * 0, counts[:, :-1]), 1), wide, 1)
        own = next_cell & np.repeat(state.waiting.reshape(len(passed), -1, wide).any(2), wide, 1)
        self._redraw(context, uniforms, state, gains := own & (cells % wide < above), rejected, after_test=True)
        state.accepted = state.accepted | gains
        return rejected

    def _passed(self, context: DecodeContext, uniforms: Uniforms, state: Grid) -> np.ndarray:
        """[B, N] bool: cells whose drafts pass the test against the newest distributions."""
        positions = context.text.prompt[:, None] + np.arange(state.accepted.shape[1])
        u = uniforms.noise(upload(positions, state.tokens.device), "waiting", 1)[..., 0]
        at = state.tokens[..., None]
        draft_prob = torch.where(state.point, 1, state.q.gather(-1, at)[..., 0])
        passed: np.ndarray = download(u * draft_prob < state.p.gather(-1, at)[..., 0])
        return passed

    # --- a round with joint=true ---

    def _propose_joint(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: Grid) -> Draft:
        """One chain in raster order of accepted tokens and drafts."""
        text, device = context.text, context.text.device
        self._accept_joint(context, uniforms, state)
        counts = np.minimum(remaining, self.window - 1)
        last = (text.length - text.prompt - 1)[:, None]  # the cell of node 0
        cells = np.arange(state.accepted.shape[1])
        inside = (cells > last) & (cells <= last + counts[:, None])
        fixed, draft = inside & state.accepted, inside & ~state.accepted
        redrawn, missing = draft & state.known, draft & ~state.known
        self._redraw(context, uniforms, state, redrawn, redrawn & state.drafted)
        given = (cells <= last) | fixed | redrawn
        state.tokens = state.tokens.gather(1, upload(_newest(given, self._grid_sides(context.model)[1]), device))
        state.point = torch.where(upload(missing, device), True, state.point)
        state.drafted = draft
        nodes = np.arange(int(counts.max(initial=0)) + 1)
        real = nodes <= counts[:, None]
        state.fed = np.where(real, last + nodes, -1)
        at = np.maximum(state.fed, 0)
        cell = upload(at, device)
        own, preaccepted = (upload(np.take_along_axis(each, at, 1) & real, device) for each in (draft, fixed))
        tokens = torch.cat((text.last[:, None], state.tokens.gather(1, cell[:, 1:])), 1)
        q = state.q.gather(1, cell[..., None].expand(-1, -1, state.q.shape[-1])) * own[..., None]
        chain = Draft(
            tokens,
            counts + 1,
            text.length - 1,
            preaccepted=preaccepted if fixed.any() else None,
            q=q,
            is_point_mass=state.point.gather(1, cell) & own,
        )
        if self.sides[0] == 1 or chain.width == 1:
            return chain
        drawn = upload(np.take_along_axis(redrawn, at, 1) & real, device)
        return with_siblings(chain, self.sides, counts, drawn, uniforms)

    def _accept_joint(self, context: DecodeContext, uniforms: Uniforms, state: Grid) -> None:
        """Accepts drafts below the row in which the last path ended, and redraws the first rejected one of each row.

        A row gets as far as the row above by tokens that the forward was fed: a redrawn one was seen by nobody yet.
        """
        if not state.drafted.any():
            return
        (rows, wide), lag = self._grid_sides(context.model), self._lag(context.model)
        tested = state.drafted & state.known
        passed = tested & self._passed(context, uniforms, state)
        # The last token was drawn after the forward, and none that is not a first one was seen by others.
        top, end = np.divmod(context.text.length - context.text.prompt - 1, wide)
        seen = np.clip(state.departed - top * wide, 0, end)
        accepted, gains = (each.reshape(len(top), rows, wide) for each in (state.accepted, np.zeros_like(passed)))
        accepted, column = accepted.copy(), np.arange(wide)
        for row in range(int(top.min()) + 1, rows):
            below = row > top
            begun = accepted[:, row, 0] | (seen >= lag)
            stop = np.where(below & begun, seen, 0)[:, None]
            run = accepted[:, row] | (passed.reshape(accepted.shape)[:, row] & (column < stop))
            accepted[:, row] = np.where(below[:, None], np.logical_and.accumulate(run, 1), accepted[:, row])
            seen = np.where(below, accepted[:, row].sum(1), seen)
            gains[:, row] = below[:, None] & (column == seen[:, None]) & (column < stop)
        state.accepted, redrawn = accepted.reshape(passed.shape), gains.reshape(passed.shape) & tested
        self._redraw(context, uniforms, state, redrawn, redrawn, after_test=True)
        state.accepted = state.accepted | redrawn

    # --- its parts ---

    def _layout(
        self, accepted: np.ndarray, last: np.ndarray, remaining: np.ndarray, rows: int, wide: int, lag: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """[B, N] bool each: cells of stand-ins, of drafts, and those below the first incomplete row."""
        counts = _counts(accepted, wide)  # [B, rows]
        cells, row = np.arange(rows * wide), np.arange(rows)
        top = (last + 1) // wide  # [B, 1]
        ahead = np.concatenate((np.full_like(top, wide), counts[:, :-1]), 1)  # accepted tokens of the row above
        begun = (row > top) & ((counts > 0) | ((ahead >= lag) & (ahead < wide)))
        size = np.where(begun, np.minimum(self.window - 1, ahead - counts), 0)  # [B, rows]
        below = np.repeat(row > top, wide, 1)
        column = cells % wide
        start = np.repeat(counts, wide, 1)
        draft = below & (column >= start) & (column < start + np.repeat(size, wide, 1))
        first = last + 1 + np.take_along_axis(counts, np.minimum(top, rows - 1), 1) - (last + 1) % wide
        stop = np.where(begun.any(1, keepdims=True), (top + 1) * wide - 1, last + 1 + remaining[:, None])
        stop = np.minimum(stop, first + self.window - 1)
        chain = (cells >= first) & (cells < stop)
        next_row = np.concatenate((begun & (counts == 0) & (size > 0), np.zeros_like(top, dtype=bool)), 1)[:, 1:]
        stand_in = np.repeat(next_row, wide, 1) & (column == wide - 1)
        return stand_in, draft | chain, below & begun.repeat(wide, 1)

    def _redraw(
        self,
        context: DecodeContext,
        uniforms: Uniforms,
        state: Grid,
        redrawn: np.ndarray,
        old: np.ndarray,
        *,
        after_test: bool = False,
    ) -> None:
        """Samples the cells `redrawn` [B, N] from p, coupled with the `old` drafts; p becomes their q.

        `after_test`: these drafts were rejected, so that the sample is one of the residual.
        """
        if not redrawn.any():
            return
        device = state.tokens.device
        row, cell = upload(np.stack(redrawn.nonzero()), device)
        positions = upload(context.text.prompt[:, None] + np.arange(redrawn.shape[1]), device)
        u, keep = uniforms.noise(positions, "rejected" if after_test else "refresh", 2)[row, cell].unbind(-1)
        if after_test:
            keep = torch.full_like(keep, torch.inf)
        p, has_old = state.p[row, cell], upload(old, device)[row, cell]
        new = coupled_sample(p, state.tokens[row, cell], state.q[row, cell], state.point[row, cell], has_old, keep, u)
        state.tokens[row, cell], state.q[row, cell], state.point[row, cell] = new, p, False

    def _fresh(
        self,
        context: DecodeContext,
        uniforms: Uniforms,
        state: Grid,
        given: np.ndarray,
        missing: np.ndarray,
        waiting: np.ndarray,
        remaining: np.ndarray,
    ) -> None:
        """Point masses for the cells `missing` [B, N]: copies of the token to the left."""
        text, device = context.text, state.tokens.device
        wide = self._grid_sides(context.model)[1]
        first = (text.length - text.prompt)[:, None]
        ahead = np.minimum(first + np.arange(max(int(remaining.max(initial=0)), 1)), missing.shape[1] - 1)
        along = np.take_along_axis(given & ~waiting, ahead, 1)  # the first incomplete row, and what follows it
        count = np.logical_and.accumulate(along, 1).sum(1)
        guesses = fresh("left", state.tokens.gather(1, upload(ahead, device)), count, context, uniforms)
        chain = missing & ~waiting
        if chain.any():
            row, cell = chain.nonzero()
            offset = upload(cell - first[row, 0], device)
            where, at = upload(row, device), upload(cell, device)
            state.tokens[where, at] = guesses[where, offset]
        if (later := missing & waiting).any():
            row, cell = later.nonzero()
            source = np.where(given | missing, np.arange(missing.shape[1]), -1)
            source = np.where(missing, -1, source).reshape(len(missing), -1, wide)
            source = np.maximum.accumulate(source, 2).reshape(missing.shape)[row, cell]  # the newest token to the left
            counts = _counts(state.accepted, wide)
            above = (cell // wide - 1) * wide + counts[row, cell // wide - 1] - 1
            where, at = upload(row, device), upload(cell, device)
            state.tokens[where, at] = state.tokens[where, upload(np.where(source < 0, above, source), device)]
        mass = upload(missing, device)
        state.point = torch.where(mass, True, state.point)

    def _parents(
        self, kinds: np.ndarray, number: np.ndarray, kind: np.ndarray, cell: np.ndarray, last: np.ndarray
    ) -> np.ndarray:
        """[B, T - 1]: the node before each one after node 0."""
        cells = kinds.shape[1] // 3
        fixed, before = kinds[:, :cells].cumsum(1), np.maximum(cell - 1, 0)
        by_kind = [
            np.where(np.take_along_axis(kinds, part * cells + before, 1),
                     np.take_along_axis(number, part * cells + before, 1), 0)
            for part in (_DRAFT, _FIXED, _STAND_IN)
        ]  # fmt: skip
        left = np.where(by_kind[0] > 0, by_kind[0], np.where(by_kind[1] > 0, by_kind[1], by_kind[2]))
        earlier = np.take_along_axis(fixed, cell, 1)  # accepted cells up to this one are the first nodes
        return np.where(kind == _FIXED, earlier - 1, np.where(kind == _STAND_IN, earlier, left))

    def observe(self, outcome: RoundResult, context: DecodeContext, state: Grid) -> None:
        text, device = context.text, state.tokens.device
        cells = np.arange(state.accepted.shape[1])
        committed = cells < (text.length - text.prompt)[:, None]
        where = np.minimum(text.prompt[:, None] + cells, text.host.shape[1] - 1)
        codes = upload(np.take_along_axis(text.host, where, 1), device)
        state.tokens = torch.where(upload(committed, device), codes, state.tokens)
        state.accepted = state.accepted | committed
        state.known = np.zeros_like(committed)
        if not outcome.draft.sizes.max(initial=0):
            return
        sizes, probs = outcome.draft.sizes, outcome.distributions.probs
        state.departed = np.full(len(sizes), len(cells))
        if self.joint and outcome.draft.parents is not None:
            at, first = window_nodes(self.sides, outcome)
            probs = at_nodes(probs, at)
            sizes = window_tree(*self.sides, outcome.draft.deepest).depths.numpy()[sizes - 1] + 1
            other = download(at != first)
            state.departed = np.where(other.any(1), state.fed[:, 0] + other.argmax(1), len(cells))
        row, node = (np.arange(state.fed.shape[1]) < sizes[:, None]).nonzero()
        target = state.fed[row, node] + 1
        inside = target < len(cells)
        row, node, target = row[inside], node[inside], target[inside]
        state.known[row, target] = True
        at, source, cell = upload(np.stack((row, node, target)), device)
        state.p[at, cell] = probs[at, source]
        state.known &= ~state.accepted


def _counts(accepted: np.ndarray, wide: int) -> np.ndarray:
    """[B, rows]: accepted tokens of each row, from its left."""
    run = np.logical_and.accumulate(accepted.reshape(len(accepted), -1, wide), 2)
    counts: np.ndarray = run.sum(2)
    return counts


def _newest(given: np.ndarray, wide: int) -> np.ndarray:
    """[B, N]: for each cell, the last `given` [B, N] cell of its row up to it.

    A cell without one takes the result of the first cell of the row above.
    """
    source = np.where(given, np.arange(given.shape[1]), -1).reshape(len(given), -1, wide)
    source = np.maximum.accumulate(source, 2)
    for row in range(1, source.shape[1]):
        source[:, row] = np.where(source[:, row] < 0, source[:, row - 1, :1], source[:, row])
    return np.maximum(source, 0).reshape(given.shape)
