"""Drafters that need no model, written from their papers: lists, loops, and a search of the whole text each time."""

from __future__ import annotations

from collections.abc import Sequence


def on(text: Sequence[int], place: int, count: int) -> list[int]:
    """`count` tokens copied from index `place` on; copied tokens can be copied again."""
    whole = list(text)
    for index in range(count):
        whole.append(whole[place + index])
    return whole[len(text) :]


def lookup(text: Sequence[int], k: int, most: int, prefer: str) -> list[int]:
    """Prompt lookup: the tokens after an earlier occurrence of the longest suffix of up to `most` tokens."""
    text = list(text)
    for size in range(min(most if prefer != "longest" else len(text), len(text) - 1), 0, -1):
        places = [s + size for s in range(len(text) - size) if text[s : s + size] == text[-size:]]
        if places:
            return text[places[0] :][:k] if prefer == "first" else on(text, places[-1], k)
    return []


class Copying:
    """CopySpec on one row, called after each round."""

    def __init__(self, k: int, suffix: int) -> None:
        self.k, self.suffix = k, suffix
        self.source: int | None = None
        self.asked = 0  # length of the text when last asked

    def draft(self, text: Sequence[int]) -> list[int]:
        text = list(text)
        if self.source is not None:
            gained = len(text) - self.asked
            copied = [text[self.source + i] for i in range(gained)]
            self.source = self.source + gained if copied == text[self.asked :] else None
        if self.source is None:
            ending = text[-self.suffix :]
            for start in range(len(text) - self.suffix - 1, -1, -1):
                if text[start : start + self.suffix] == ending:
                    self.source = start + self.suffix
                    break
        self.asked = len(text)
        return [] if self.source is None else on(text, self.source, self.k)


def aggressive(source: Sequence[int], output: Sequence[int], most: int, agree: int = 0) -> list[int]:
    """The rest of the source after the output, searched from the start at each call.

    With `agree` > 0 deviating tokens replace those of the source one by one, until that many in a row agree.
    """
    source, at, since, follows = list(source), 0, 0, True
    for end in range(1, len(output) + 1):
        if follows and source[at : at + 1] == [output[end - 1]]:
            at += 1
            continue
        follows, since = False, since + 1
        guesses = agree > 0 and at > 0
        equal = 0
        while equal < since and source[at + since - equal - 1 : at + since - equal] == [output[end - equal - 1]]:
            equal += 1
        if guesses and equal >= agree:
            at, since, follows = at + since, 0, True
            continue
        if guesses and (equal or since == 1):
            continue
        for size in range(1, min(most, since if guesses else end) + 1):
            ending = list(output[end - size : end])
            places = [s for s in range(at, len(source) - size + 1) if source[s : s + size] == ending]
            if len(places) == 1:
                at, since, follows = places[0] + size, 0, True
            if len(places) < 2:
                break
    return source[at:] if follows else source[at + since :] if agree and at else []


class Recycled:
    """Token Recycling's matrix as a dictionary, and its tree by recursion."""

    def __init__(self) -> None:
        self.followers: dict[int, list[int]] = {}

    def update(self, tokens: Sequence[int], distributions: Sequence[Sequence[float]], k: int) -> None:
        """Records each node in turn; of equal tokens the last one is kept."""
        for token, distribution in zip(tokens, distributions, strict=True):
            self.followers[token] = sorted(range(len(distribution)), key=lambda other: -distribution[other])[:k]

    def tree(self, root: int, paths: Sequence[tuple[int, ...]], room: int) -> set[tuple[int, ...]]:
        """The token paths below `root`."""
        found = set()
        for path in paths:
            here, tokens = root, []
            for rank in path:
                known = self.followers.get(here, [])
                if rank >= len(known):
                    break
                here = known[rank]
                tokens.append(here)
            if len(tokens) == len(path) <= room:
                found.add(tuple(tokens))
        return found


def suffix(
    text: Sequence[int], texts: Sequence[Sequence[int]], k: int, least: float, depth: int, factor: float, offset: float
) -> list[int]:
    """Suffix decoding of a chain: every match length in the text and in earlier texts, strings counted by comparing.

    A string's count in the text leaves out the one that ends it. Of equally frequent tokens the last one is taken, of
    equal scores the longer match, and then the text's own.
    """
    own = list(text)
    best: tuple[float, int, bool, list[int]] = (0.0, 0, False, [])
    for size in range(1, min(depth, len(own)) + 1):
        for stored, among in ((False, [own]), (True, [list(each) for each in texts])):
            budget, drafted, chance, score = min(k, int(factor * size + offset)), list[int](), 1.0, 0.0
            while len(drafted) < budget:
                string = own[-size:] + drafted
                n = len(string)
                ends = [(each, s + n) for each in among for s in range(len(each) - n + 1) if each[s : s + n] == string]
                ends = ends if stored else [(each, at) for each, at in ends if at < len(each)]
                following = [each[at] for each, at in ends if at < len(each)]
                if not following:
                    break
                most = max(map(following.count, following))
                token = [token for token in following if following.count(token) == most][-1]
                chance *= most / len(ends)
                if chance < least:
                    break
                drafted.append(token)
                score += chance
            best = max(best, (score, size, not stored, drafted))
    return best[3]
