"""Emu3's grammar, recorded from its authors' code and SJD's port: the tokens at each place after the image token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from golden_specs import Case, Replay
from pardec.models.images.emu3 import TOKENS, Emu3Imaging, Emu3Words
from pardec.requests.images import intersect
from pardec.requests.prompts import Row

_NAMED = {"eol": "<|extra_200|>", "eof": "<|extra_201|>", "eoi": "<|image end|>", "eos": "<|extra_204|>"}


def _allowed(case: Case) -> list[str]:
    """The tokens that each position of an image may have, by the constraints of a request of this size."""
    p = case["params"]
    first, last = p["visual_tokens"]
    ids = {name: p[f"{short}_token"] for short, name in _NAMED.items()}
    others = iter(range(last + 1, last + 1 + len(TOKENS)))
    vocabulary = {token: ids.get(token, next(others)) for token in TOKENS}
    vocabulary |= {f"<|visual token {code:06d}|>": first + code for code in range(last + 1 - first)}
    words = Emu3Words(None, vocabulary, case["id"])
    imaging = Emu3Imaging(words, lambda: torch.zeros(0), vq=None, downsample=8)
    layout = imaging.resized(8 * p["height"], 8 * p["width"]).layout
    row = Row(torch.tensor(case["prompt_ids"]), torch.full((layout.tokens,), -1))
    constraints = intersect(layout, None, [row], last + 1 + len(TOKENS))
    assert constraints is not None, "a grammar"
    names = {(p[f"{short}_token"],): short for short in _NAMED}
    names[tuple(range(first, last + 1))] = "visual"
    sets = constraints.sets[constraints.at[0][len(row.prompt) :]]
    return [names.get(tuple(each.nonzero()[:, 0].tolist()), "other") for each in sets]


def grammar(case: Case, *_: object) -> str | None:
    """The rule token by token, which also asks for a row end after the image; that fault is left out."""
    own, rows = _allowed(case), case["params"]["height"] * (case["params"]["width"] + 1)
    for index, recorded in enumerate(case["allowed"]):
        expected = own[index] if index < len(own) else "pad"
        if recorded != expected and not (index >= rows and recorded == "eol"):
            return f"position {index} may be {expected}, expected {recorded}"
    return None


def window(case: Case, *_: object) -> str | None:
    """The rule of a window; where it differs from the token-by-token rule, the window's is right."""
    own, start = _allowed(case), case["params"]["generated"]
    expected = [own[index] if index < len(own) else "pad" for index in range(start, start + case["params"]["window"])]
    return None if expected == case["allowed"] else f"{expected}, expected {case['allowed']}"


def _replay(compare: Any) -> Replay:
    """Makes a comparison that needs no checkpoint."""

    def replay(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
        difference: str | None = compare(case)
        return difference

    return replay


REPLAYS = {"emu3_grammar": _replay(grammar), "emu3_window": _replay(window)}
