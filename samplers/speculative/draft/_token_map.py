"""Tokens of a drafter as tokens of a target with another tokenizer, and the target's text as the drafter's tokens."""

from __future__ import annotations

from collections.abc import Sequence

from pardec.models.files.token_bytes import TokenBytes
from pardec.models.model import LanguageModel

_MARGIN = 16  # bytes at a text's end whose tokens may change with what follows
_SPACE = b" "


class TokenMap:
    """Which target token one drafter token, or a run of them, stands for."""

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
        self.known: set[int] = set()  # tokens of the target that it has learned from
        self.grams: dict[tuple[int, ...], int] = {}
        self.beginnings: set[tuple[int, ...]] = set()  # proper prefixes of `grams`

    def copy(self) -> TokenMap:
        """A map of its own that knows the same."""
        other = object.__new__(TokenMap)
        vars(other).update(vars(self), known=set(self.known))
        other.grams, other.beginnings = dict(self.grams), set(self.beginnings)
        return other

    def learn(self, token: int) -> None:
        """Adds the run of drafter tokens that spells this token of the target, if it is one."""
        if not self.runs or token in self.known:
            return
        self.known.add(token)
        run = tuple(self.drafter.encode(self.target.tokens[token]))
        if len(run) > 1:
            self.grams[run] = token
            self.beginnings.update(run[:size] for size in range(1, len(run)))

    def first(self, pending: Sequence[int]) -> tuple[int, int] | None:
        """The target token that drafter tokens begin with, and how many of them it takes; the longest run wins.

        None while more of them may belong to a longer run. A count of 0: what they begin with has no translation.
        """
        run = tuple(pending)
        if not run or run in self.beginnings:
            return None
        for size in range(len(run), 1, -1):
            if (token := self.grams.get(run[:size])) is not None:
                return token, size
        return (self.direct[run[0]], 1) if run[0] in self.direct else (-1, 0)


class Reading:
    """The text of one row as the drafter's tokens, which follow it as it grows."""

    def __init__(self, tokens: TokenMap, drafter: LanguageModel, target: LanguageModel) -> None:
        self.tokens, self.target = tokens, target
        assert drafter.tokenizer is not None, "checked"
        self.ids: list[int] = list(drafter.tokenizer("")["input_ids"])  # such as a token for the beginning
        if self.ids and self.ids[-1] in drafter.decoding_config.eos_ids:
            self.ids.clear()
        self.ends = [0] * len(self.ids)  # where each of them ends in `text`
        self.fixed = len(self.ids)  # of these, from the first on, that no text changes
        self.text = b""
        self.known = 0  # tokens of the target that were read

    def grow(self, row: Sequence[int]) -> None:
        """Reads the tokens of the target's `row` that are new; the last drafter tokens may change."""
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
            # A tokenizer that begins every text with a space leaves that out when it decodes.
            self.text += value.removeprefix(_SPACE) if not self.text and self._hides_space(token) else value
        self.known = len(row)
        self._read(start)

    def _hides_space(self, token: int) -> bool:
        assert self.target.tokenizer is not None, "checked"
        return not self.target.tokenizer.decode([token]).startswith(" ")

    def _read(self, start: int) -> None:
        """Encodes the text anew from a token on that ends well before `start`, where the new text begins."""
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
