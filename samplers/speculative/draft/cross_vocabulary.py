"""A draft model with another tokenizer, which continues the target's text and whose tokens are translated.

`TokenMap` translates the drafter's tokens, and `DrafterText` encodes the target's text with the drafter's tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.files.token_bytes import TokenBytes
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible

from ...host_transfer import upload
from ...ops.confidence import argmax
from ...traits import Trait
from ..contracts import DecodeContext, Draft, Uniforms
from ..draft_model import DraftState, depth_budget
from ..forward import CacheRows, catch_up_groups

_MARGIN = 16  # bytes at a text's end whose tokens may change as the text grows
_SPACE = b" "


class TokenMap:
    """Maps a drafter token, or a run of them, to a target token."""

    def __init__(self, drafter: LanguageModel, target: LanguageModel, *, runs: bool = True) -> None:
        """Without `runs` the map does not learn."""
        self.runs, self.tokenizers = runs, (drafter.tokenizer, target.tokenizer)
        self.drafter, self.target = (TokenBytes(each.tokenizer, each.vocab_size) for each in (drafter, target))
        ids = self.target.ids
        self.direct = {token: ids[value] for token, value in enumerate(self.drafter.tokens) if value in ids}
        self.same = _special(
            drafter, self.drafter, target, self.target
        )  # special tokens of the target -> the drafter's
        self.direct |= {token: other for other, token in self.same.items()}
        ends = target.decoding_config.eos_ids
        self.direct |= {token: ends[0] for token in drafter.decoding_config.eos_ids if ends}
        self.known: set[int] = set()  # target tokens from which the map has learned
        self.grams: dict[tuple[int, ...], int] = {}
        self.beginnings: set[tuple[int, ...]] = set()  # proper prefixes of `grams`

    def copy(self) -> TokenMap:
        """A copy of the map."""
        other = object.__new__(TokenMap)
        vars(other).update(vars(self), known=set(self.known))
        other.grams, other.beginnings = dict(self.grams), set(self.beginnings)
        return other

    def learn(self, token: int) -> None:
        """Adds the run of drafter tokens that spells this target token, if there is one."""
        if not self.runs or token in self.known:
            return
        self.known.add(token)
        run = tuple(self.drafter.encode(self.target.tokens[token]))
        if len(run) > 1:
            self.grams[run] = token
            self.beginnings.update(run[:size] for size in range(1, len(run)))

    def first(self, pending: Sequence[int]) -> tuple[int, int] | None:
        """The target token at the start of drafter tokens, and the number of tokens it covers; the longest run wins.

        None while more of them may belong to a longer run. A count of 0: what they begin with has no translation.
        """
        run = tuple(pending)
        if not run or run in self.beginnings:
            return None
        for size in range(len(run), 1, -1):
            if (token := self.grams.get(run[:size])) is not None:
                return token, size
        return (self.direct[run[0]], 1) if run[0] in self.direct else (-1, 0)


class DrafterText:
    """The text of one row in the drafter's tokens, updated as the row grows."""

    def __init__(self, tokens: TokenMap, drafter: LanguageModel, target: LanguageModel) -> None:
        self.tokens, self.target = tokens, target
        assert drafter.tokenizer is not None, "checked"
        self.ids: list[int] = list(drafter.tokenizer("")["input_ids"])  # for example a beginning-of-text token
        if self.ids and self.ids[-1] in drafter.decoding_config.eos_ids:
            self.ids.clear()
        self.ends = [0] * len(self.ids)  # where each id ends in `text`
        self.fixed = len(self.ids)  # the number of leading ids that later text cannot change
        self.text = b""
        self.known = 0  # target tokens read so far

    def extend(self, row: Sequence[int]) -> None:
        """Encodes the new tokens of the target's `row`; the last drafter tokens may change."""
        start = len(self.text)
        for token in row[self.known :]:
            if token in self.tokens.target.special:
                if token in self.tokens.same and token != self.target.decoding_config.bos_id:
                    self._read(start)
                    self.ids.append(self.tokens.same[token])
                    self.ends.append(len(self.text))
                    self.fixed, start = len(self.ids), len(self.text)
                continue
            value = self.tokens.target.tokens[token]
            # A tokenizer that adds a space before every text drops this space when it decodes.
            self.text += value.removeprefix(_SPACE) if not self.text and self._hides_space(token) else value
        self.known = len(row)
        self._read(start)

    def _hides_space(self, token: int) -> bool:
        assert self.target.tokenizer is not None, "checked"
        return not self.target.tokenizer.decode([token]).startswith(" ")

    def _read(self, start: int) -> None:
        """Encodes the text again from a token well before `start`, where the new text begins."""
        if start == len(self.text):
            return
        size = self.fixed
        for count in range(len(self.ids), self.fixed, -1):
            end = self.ends[count - 1]
            if end <= start - _MARGIN and (size == self.fixed or self.text[end : end + 1] == _SPACE):
                size = count
                if self.text[end : end + 1] == _SPACE or end < start - 4 * _MARGIN:  # a word begins there
                    break
        del self.ids[size:], self.ends[size:]
        end = self.ends[-1] if self.ends else 0
        for token in self.tokens.drafter.encode(self.text[end:]):
            end += len(self.tokens.drafter.tokens[token])
            self.ids.append(token)
            self.ends.append(end)


def _special(drafter: LanguageModel, ours: TokenBytes, target: LanguageModel, theirs: TokenBytes) -> dict[int, int]:
    """The drafter's token for each special token of the target that it has under the same name."""
    assert drafter.tokenizer is not None, "checked"
    assert target.tokenizer is not None, "checked"
    names = {drafter.tokenizer.convert_ids_to_tokens(token): token for token in sorted(ours.special)}
    known = ((token, target.tokenizer.convert_ids_to_tokens(token)) for token in sorted(theirs.special))
    return {token: names[name] for token, name in known if name in names}


class _Row:
    """One row: its text in the drafter's tokens, and how much of it is in the cache."""

    def __init__(self, tokens: TokenMap, drafter: LanguageModel, target: LanguageModel) -> None:
        self.tokens, self.text = tokens, DrafterText(tokens, drafter, target)
        self.fed: list[int] = []  # ids whose K/V are in the first slots
        self.ids: list[int] = []  # the text's, then the drafted ones
        self.learned = 0  # tokens of the target from which the map has learned
        self.pending: list[tuple[int, float]] = []  # drafted ids that are not translated yet, with their probabilities
        self.live = False

    def follow(self, row: list[int]) -> None:
        """Follows the target's `row`; drops K/V after the longest common prefix of ids."""
        for token in row[self.learned :]:
            self.tokens.learn(token)
        self.learned = len(row)
        self.text.extend(row)
        self.ids, self.pending = list(self.text.ids), []
        common = 0
        for ours, theirs in zip(self.fed, self.ids[:-1], strict=False):  # the last one is fed for its logits
            if ours != theirs:
                break
            common += 1
        del self.fed[common:]

    def next_token(self) -> tuple[int, float] | None:
        """The next translated token and its drafter probability; None: more ids are needed, or the row is dead."""
        first = self.tokens.first([token for token, _ in self.pending])
        if first is None:
            return None
        token, count = first
        if not count:
            self.live = False
            return None
        sure = float(np.prod([p for _, p in self.pending[:count]]))
        del self.pending[:count]
        return token, sure


class CrossVocabularyState(DraftState):
    """The state of a request for a draft model with another vocabulary, whose KV cache holds its own tokens."""

    per_row = ("rows", "own_cache")

    def __init__(self, context: DecodeContext, model: LanguageModel, maps: list[TokenMap]) -> None:
        """`maps`: one per row, or one that all rows share."""
        finite.demand_head(model)
        self.context, self.model = context, model
        self.rows = [_Row(tokens, model, context.model) for tokens in maps]
        self.cache = model.new_cache(len(maps), 2 * int(context.text.limit.max()))
        self.own_cache = CacheRows(model.decoder, self.cache)
        self.calls = 0  # forwards of this round
        self.runs: list[finite.Run] = []  # plans and caches of these forwards
        self.highest = torch.zeros((), device=context.text.device)

    def draft(self, most: int, remaining: np.ndarray, uniforms: Uniforms) -> Draft:
        """A chain of at most `most` translated tokens, `remaining` [B] deep: the likeliest ids, as point masses."""
        context, budget = self.context, depth_budget(self.context, most, remaining)
        text, length = context.text, context.sampler.length
        drops = length is not None and Trait.DROPS_LAST in length.provides
        drafted = np.zeros((len(text), int(budget.max(initial=0))), dtype=np.int64)
        counts = np.zeros_like(budget)
        self.calls, self.highest = 0, torch.zeros((), device=text.device)
        self.runs.clear()
        for at, row in enumerate(self.rows):
            row.live = budget[at] > 0
            if row.live:
                row.follow(text.row(at).tolist())
                row.live = bool(row.ids)
        for step in range(drafted.shape[1]):
            tokens, sure = self._step()
            stopped = None
            if length is not None:
                confidence = torch.from_numpy(sure).float()
                stopped = length.stop(confidence, step, context, context.state(length))
            for at, row in enumerate(self.rows):
                ends = stopped is not None and bool(stopped[at])
                if row.live and not (ends and drops):
                    drafted[at, step], counts[at] = tokens[at], step + 1
                row.live = row.live and not ends and bool(budget[at] > step + 1)
            if not any(row.live for row in self.rows):
                break
        chain = upload(drafted, text.device)
        return Draft.chain(text, chain, counts, forwards=self.calls, highest=self.highest)

    def _step(self) -> tuple[np.ndarray, np.ndarray]:
        """The next translated token of each live row and its probability, both [B]; rows without one stop drafting."""
        tokens, sure = np.zeros(len(self.rows), dtype=np.int64), np.zeros(len(self.rows))
        waiting = [at for at, row in enumerate(self.rows) if row.live]
        while waiting:
            short = []
            for at in waiting:
                row = self.rows[at]
                token = row.next_token()
                if token is not None:
                    tokens[at], sure[at] = token
                elif row.live:
                    short.append(at)
            waiting = self._feed(short) if short else []
        return tokens, sure

    def _feed(self, rows: list[int]) -> list[int]:
        """Drafts one more id in each of these rows with room for it; returns the rows that drafted."""
        limit = self.model.limit
        for at in rows:
            row = self.rows[at]
            row.live = limit is None or len(row.ids) <= limit
        rows = [at for at in rows if self.rows[at].live]
        if not rows:
            return []
        longest = max(len(self.rows[at].ids) for at in rows)
        if longest > self.cache.capacity:
            self.cache.grow(longest + longest // 2)
        missing = np.array([len(self.rows[at].ids) - len(self.rows[at].fed) for at in rows])
        groups = catch_up_groups(missing)
        for group in groups:
            self._run([rows[at] for at in group], int(missing[group].max()))
        self.calls += 1  # each row took part in one
        return rows

    def _run(self, rows: list[int], width: int) -> None:
        device = self.context.text.device
        tokens, slots = np.zeros((len(rows), width), dtype=np.int64), np.full((len(rows), width), -1, dtype=np.int64)
        lengths = np.zeros(len(rows), dtype=np.int64)
        for index, at in enumerate(rows):
            row = self.rows[at]
            first, lengths[index] = len(row.fed), len(row.ids)
            count = len(row.ids) - first
            tokens[index, :count] = row.ids[first:]
            slots[index, :count] = np.arange(first, len(row.ids))
        where = upload(slots, device)
        whole = len(rows) == len(self.rows)
        plan = Plan(
            tokens=upload(tokens, device),
            positions=where,
            slots=where,
            visible=Visible.causal(),
            lengths=upload(lengths, device),
            want=upload((slots >= 0).sum(1, keepdims=True) - 1, device),
            rows=None if whole else upload(torch.tensor(rows), device),
            narrow=True,
        )
        self.runs.append((plan, self.cache))
        logits: Tensor = self.model.run(plan, self.cache).logits()[:, 0]
        self.highest = self.highest + logits.amax(-1).sum()
        chosen = argmax(logits)
        sure = logits.softmax(-1).gather(-1, chosen[:, None])[:, 0].tolist()
        for at, token, p in zip(rows, chosen.tolist(), sure, strict=True):
            row = self.rows[at]
            row.fed = list(row.ids)
            row.ids.append(token)
            row.pending.append((token, p))
