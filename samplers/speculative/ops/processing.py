"""Processes raw logits for sampling: bias, processors, penalties, allowed tokens, grammars, temperature and filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.errors import SpecError

from ...batching import RowState
from ...host_transfer import download, upload
from ...ops.allowed import AllowedRows
from ...ops.distribution import filter_logits
from ...ops.penalties import bias_vector, subtract_counts, token_counts, without_ends
from ...request import Grammar, Request
from ..contracts import Draft, Logits
from ..sequences import Sequences

_Change = Callable[[Tensor, Tensor, Tensor], Tensor]  # live rows [N], texts [N, C], logits [N, V] -> logits [N, V]


class Processing(RowState):
    """The logits processing of one request, the same for target and drafter, so that p and q can be compared.

    Logits processors of transformers see, for each node, the row's committed tokens and the node's own path; grammars
    see what of these was generated. The sampler's own `stages` come after all that excludes tokens, and for the target
    alone.
    """

    per_row = ("allowed", "grammars")

    def __init__(self, request: Request, text: Sequences, stages: Sequence[Logits] = ()) -> None:
        self.request, self.text, self.stages = request, text, tuple(stages)
        self.allowed = AllowedRows(request.allowed, len(text), text.device)
        self.grammars: list[Grammar | None] = list(request.grammars) or [None] * len(text)
        self.processors = request.processors
        self.bias: Tensor | None = None  # [V], on the device of the logits
        if request.repetition_penalty is not None:
            from transformers import RepetitionPenaltyLogitsProcessor

            self.processors = (RepetitionPenaltyLogitsProcessor(request.repetition_penalty), *self.processors)
        self.compose()

    def of_target(self, raw: Tensor, draft: Draft, nodes: Tensor | None = None) -> Tensor:
        """The target's processed logits.

        Args:
            raw: [B, K, V] logits after `nodes`.
            draft: the nodes so far.
            nodes: [B, K] int64, which of them, -1 where there is none; None is all.
        """
        logits = self._constrained(raw, draft, nodes)
        if self.stages:
            logits = self._by_length(logits, draft, nodes, self._staged)
        return self.filtered(logits)

    def compose(self) -> None:
        """Chooses the steps that this request needs; called again when rows leave or join.

        Sets `excludes`, whether any row may be without some tokens before the filters, `only_filters`, whether the
        temperature and filters are all that changes the target's logits, and `unchanged`, whether nothing does.
        """
        self.excludes = bool(self.allowed or any(self.grammars) or self.request.min_new_tokens)
        steps = (
            (self.request.logit_bias, Processing._biased),
            (self.processors, Processing._processed),
            (self.request.penalizes_counts, Processing._penalized),
            (self.allowed, Processing._allowed),
            (any(self.grammars), Processing._grammatical),
            (self.request.min_new_tokens, Processing._without_early_ends),
        )
        self._constraints = tuple(step for applies, step in steps if applies)
        self._filters = self.request.filters
        self._filters_apply = bool(self._filters) or self.request.temperature not in (0, 1)
        self.only_filters = not (self._constraints or self.stages)
        self.unchanged = self.only_filters and not self._filters_apply

    def _constrained(self, raw: Tensor, draft: Draft, nodes: Tensor | None) -> Tensor:
        """Applies the request's processors and constraints, before temperature and filters."""
        for step in self._constraints:
            raw = step(self, raw, draft, nodes)
        return raw

    def filtered(self, logits: Tensor) -> Tensor:
        """`logits` [B, K, V] with the request's temperature and filters."""
        if not self._filters_apply:
            return logits
        return filter_logits(logits, temperature=self.request.temperature, order="top_k", **self._filters)

    def _biased(self, logits: Tensor, draft: Draft, nodes: Tensor | None) -> Tensor:
        if self.bias is None:
            self.bias = upload(bias_vector(self.request.logit_bias, logits.shape[-1]), logits.device)
        return logits + self.bias

    def _penalized(self, logits: Tensor, draft: Draft, nodes: Tensor | None) -> Tensor:
        return self._by_length(logits, draft, nodes, self._less_counts)

    def _less_counts(self, row: Tensor, ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [N, V] of live rows [N], less the penalties of the generated part of the histories `ids` [N, L]."""
        prompts = upload(self.text.prompt, row.device)[row]
        generated = torch.arange(ids.shape[1], device=row.device) >= prompts[:, None]
        counts = token_counts(ids, generated, scores.shape[-1])
        return subtract_counts(scores, counts, self.request.presence_penalty, self.request.frequency_penalty)

    def _processed(self, logits: Tensor, draft: Draft, nodes: Tensor | None) -> Tensor:
        return self._by_length(logits, draft, nodes, self._run)

    def drafted(self, raw: Tensor, draft: Draft, nodes: Tensor | None = None) -> Tensor:
        """A drafter's processed logits; all tokens are equally likely where every token it can draft is excluded.

        A drafter of a part of the vocabulary may know none of the tokens that are allowed somewhere.
        """
        logits = self.filtered(self._constrained(raw, draft, nodes))
        if not self._constraints:
            return logits
        return torch.where(logits.amax(-1, keepdim=True) == -torch.inf, 0, logits)

    def reads_ids(self) -> bool:
        """Whether the processing depends on token ids; temperature and filters do not, and work on a subset of ids."""
        return bool(self._constraints)

    def failure(self, raw: Tensor, draft: Draft, row: Tensor, node: Tensor) -> SpecError:
        """The error for nodes [N] of rows [N] without a distribution, of `raw` [B, T, V]; runs processors again."""
        request, logits = self.request, raw
        try:
            if request.processors:
                logits = self._by_length(raw, draft, None, partial(self._run, refuse=True))
        except SpecError as error:
            return error
        if self.allowed:
            logits = self._allowed(logits, draft, None)
        name = "allowed"
        if finite.sound(logits[row, node]).all() and any(self.grammars):
            logits, name = self._grammatical(logits, draft, None), "response_format"
        if not finite.sound(logits[row, node]).all():
            return SpecError(
                f"{name} excludes every token that the model and the logits processors leave at a position",
                "allow more tokens there",
            )
        return SpecError(
            f"the logits divided by temperature={request.temperature} overflow float32",
            "use a temperature nearer to 1",
        )

    def _by_length(self, raw: Tensor, draft: Draft, nodes: Tensor | None, change: _Change) -> Tensor:
        """Applies `change` to nodes grouped by the length of their histories, since it cannot handle padding."""
        row, column, texts, lengths = self._real_nodes(raw, draft, nodes)
        scores = raw[row, column]
        for length in np.unique(lengths).tolist():
            same = upload(np.flatnonzero(lengths == length), raw.device)
            scores[same] = change(row[same], texts[same, :length], scores[same])
        return raw.index_put((row, column), scores)

    def _real_nodes(self, raw: Tensor, draft: Draft, nodes: Tensor | None) -> tuple[Tensor, Tensor, Tensor, np.ndarray]:
        """Row and column in `raw` of every node but padding, and its history [N, C] with its length [N] on the host."""
        if nodes is None:
            rows, columns = (np.arange(draft.width) < draft.sizes[:, None]).nonzero()
            at = columns
        else:
            on_host = download(nodes)
            rows, columns = ((on_host >= 0) & (on_host < draft.sizes[:, None])).nonzero()
            at = on_host[rows, columns]
        depth = at if draft.parents is None else download(draft.depth)[rows, at]
        row, column, node = (upload(index, raw.device) for index in (rows, columns, at))
        texts = self._histories(draft, row, node, int(depth.max(initial=0)))
        return row, column, texts, self.text.length[rows] + depth

    def _histories(self, draft: Draft, row: Tensor, node: Tensor, deepest: int) -> Tensor:
        """The text [N, C] int64 that ends in each drafted `node` [N]: its row's committed tokens, then its path's.

        `deepest` is the greatest depth: nodes that are never tested may stand after the row's limit.
        """
        past, depth = upload(self.text.length, row.device)[row], draft.depth[row, node]
        texts = torch.nn.functional.pad(self.text.tokens[row], (0, deepest))
        index = torch.arange(len(row), device=row.device)
        for step in range(deepest):  # from the node up, one level at a time
            inside = depth > step
            column = torch.where(inside, past + depth - 1 - step, 0)
            texts[index, column] = torch.where(inside, draft.tokens[row, node], texts[:, 0])
            node = torch.where(inside, draft.parent[row, node], node)
        return texts

    def _staged(self, row: Tensor, ids: Tensor, scores: Tensor) -> Tensor:
        """Applies every logits stage in turn to nodes of the live rows `row` [N]."""
        prompts = upload(self.text.prompt, row.device)[row]
        for stage in self.stages:
            scores = stage.scores(ids, scores, prompts)
        return scores

    def _run(self, row: Tensor, ids: Tensor, scores: Tensor, *, refuse: bool = False) -> Tensor:
        """Applies every processor in turn; `row` [N] indexes live rows. `refuse`: raise if one leaves no token."""
        rows = upload(self.text.rows, row.device)[row]
        for processor in self.processors:
            by_row = getattr(processor, "by_row", None)
            run: Any = processor if by_row is None else partial(by_row, rows)
            before, scores = scores, run(ids, scores)
            if refuse and (finite.sound(before) & ~finite.sound(scores)).any():
                name = getattr(processor, "__name__", type(processor).__name__)
                raise SpecError(
                    f"the logits processor {name} excludes every token, or returns NaN or infinite logits",
                    "a processor may exclude tokens with -inf, but not all of them",
                )
        return scores

    def _allowed(self, logits: Tensor, draft: Draft, nodes: Tensor | None) -> Tensor:
        """Excludes tokens that are not allowed at the position after each node."""
        rows = torch.arange(len(self.text), device=logits.device)[:, None]
        return logits.masked_fill(
            ~self.allowed.mask(rows, self._next_positions(draft, nodes, self.text.length)), -torch.inf
        )

    def _grammatical(self, logits: Tensor, draft: Draft, nodes: Tensor | None) -> Tensor:
        """Excludes tokens that the row's grammar does not allow after each node."""
        row, column, texts, lengths = self._real_nodes(logits, draft, nodes)
        each = zip(row.tolist(), texts.tolist(), lengths.tolist(), strict=True)
        masks = np.ones((len(row), logits.shape[-1]), dtype=bool)
        for index, (live, ids, length) in enumerate(each):
            if (grammar := self.grammars[live]) is not None:
                masks[index] = grammar.mask(ids[self.text.prompt[live] : length])
        mask = upload(masks, logits.device)
        return logits.index_put((row, column), logits[row, column].masked_fill(~mask, -torch.inf))

    def _without_early_ends(self, logits: Tensor, draft: Draft, nodes: Tensor | None) -> Tensor:
        """Excludes end tokens at the first positions."""
        early = self._next_positions(draft, nodes, self.text.length - self.text.prompt) < self.request.min_new_tokens
        return without_ends(logits, early, self.request.stop_ids)

    def _next_positions(self, draft: Draft, nodes: Tensor | None, first: np.ndarray) -> Tensor:
        """[B, K]: the position after each node, where node 0's is `first` [B]."""
        depth = draft.depth if nodes is None else draft.depth.gather(1, nodes.clamp(min=0))
        return upload(first, depth.device)[:, None] + depth

    def rows_changed(self) -> None:
        self.compose()
