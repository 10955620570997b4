"""Jacobi windows and lookahead for one row, without a cache: one whole forward per round, lists in place of tensors.

Fresh guesses repeat the token before them (Jacobi), or are one given token (lookahead), so that nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Picks = Callable[[Sequence[int]], Sequence[int]]  # a text -> the pick after each of its tokens


def sliding(picks: Picks, prompt: Sequence[int], new: int, window: int) -> tuple[list[int], int]:
    """The text and the forwards of a window that moves with the text."""
    text, guesses = [*prompt, picks(prompt)[-1]], list[int]()
    rounds, end = 1, len(prompt) + new
    while len(text) < end:
        size = min(window - 1, end - len(text) - 1)
        guesses = _repeated(text, guesses, size)
        said = picks([*text, *guesses])[len(text) - 1 :]
        right = _agree(guesses, said)
        text += said[: right + 1]
        guesses = list(said[right + 1 :])
        rounds += 1
    return text, rounds


def block(
    picks: Picks,
    prompt: Sequence[int],
    new: int,
    window: int,
    *,
    exit_iterations: int = 10**9,
    exit_tokens: int = 0,
) -> tuple[list[int], int]:
    """The text and the forwards of windows that are finished one by one; their last forwards begin the next ones."""
    text, guesses = [*prompt, picks(prompt)[-1]], list[int]()
    rounds, end, left, sure, turns = 1, len(prompt) + new, 0, 0, 0
    while len(text) < end:
        if not left:
            left, turns = sure + window - 1, 0
        left, turns = min(left, end - len(text) - 1), turns + 1
        guesses = _repeated(text, guesses, left)
        said = picks([*text, *guesses])[len(text) - 1 :]
        right = min(sure, left) + _agree(guesses[sure:], said[sure:])
        text += [*guesses[:right], said[right]]
        changed = sum(guess != token for guess, token in zip(guesses[right:], said[right:], strict=False))
        left = max(left - right - 1, 0)
        guesses = list(said[right + 1 :])
        sure = 0
        if left and (turns >= exit_iterations or changed <= exit_tokens):
            left, sure = 0, left
        elif left:
            guesses = guesses[:left]
        rounds += 1
    return text, rounds


def lookahead(
    picks: Picks, prompt: Sequence[int], new: int, window: int, ngram: int, most: int, filler: int
) -> tuple[list[int], int]:
    """The text and the forwards of lookahead; every branch is run as a separate text."""
    text = [*prompt, picks(prompt)[-1]]
    lines = [[filler] * window]
    pool: dict[int, list[tuple[int, ...]]] = {}
    rounds, end = 1, len(prompt) + new
    while len(text) < end:
        room = end - len(text) - 1
        lines[0][0] = text[-1]
        guesses = [guess[:room] for guess in pool.get(text[-1], [])]
        taken = max((_agree(g, picks([*text, *g])[len(text) - 1 :]) for g in guesses), default=0)
        best = next((g for g in guesses if _agree(g, picks([*text, *g])[len(text) - 1 :]) == taken), ())
        # Column c: the text, the first line up to it, and what is below.
        branches = [[*text, *lines[0][1 : c + 1], *(line[c] for line in lines[1:])] for c in range(window)]
        fresh = [picks(branch)[-1] for branch in branches]
        fed = [room > 0 and c + len(lines) - 1 <= room + 1 for c in range(window)]
        if len(lines) == ngram - 1:
            for c in range(window):
                if fed[c]:
                    run = tuple([line[c] for line in lines[1:]] + [fresh[c]])
                    known = pool.setdefault(lines[0][c], [])
                    if run in known:
                        known.remove(run)
                    known.append(run)
                    del known[:-most]
        text += [*best[:taken], picks([*text, *best[:taken]])[-1]]
        lines.append(fresh)
        shift = taken + 1
        if len(lines) == ngram:
            del lines[0]
            shift = taken
        lines = [[*line[shift:], *[filler] * min(shift, window)] for line in lines]
        rounds += 1
    return text, rounds


def _repeated(text: Sequence[int], guesses: Sequence[int], size: int) -> list[int]:
    filled = list(guesses[:size])
    while len(filled) < size:
        filled.append(filled[-1] if filled else text[-1])
    return filled


def _agree(guesses: Sequence[int], said: Sequence[int]) -> int:
    right = 0
    while right < len(guesses) and guesses[right] == said[right]:
        right += 1
    return right
