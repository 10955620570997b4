"""Scores a candidate by its probability, its rarity, and its distance from the start of the block.

PC-Sampler: Position-Aware Calibration of Decoding Bias in Masked Diffusion Models, https://arxiv.org/abs/2508.13021

    score_i = exp(-decay i) min(cap, -p(x_i) ln f(x_i))        i = 0, 1, ... within the block

f is the share of the token in a corpus, 1 / N for one that does not occur among its N tokens: frequent tokens, which
models are sure of everywhere (line ends, ends of text), come later. Without a select in the spec `fixed` is taken, as
published: scores are no probabilities. `decay` 0.25 is for text, 1 for code, 0 where no order is natural.

Deviates from the authors' code, which adds 1e-9 to f. Where no corpus is counted all tokens are equally frequent.
Exact: no; `sequential` is defined in order of confidence.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from pardec.models.errors import SpecError, did_you_mean, one_line
from pardec.models.files.catalog import EMBEDDED
from pardec.models.model import LanguageModel

from ...registry import register
from ..contracts import Canvas, Evidence, Proposal, Propose


@register("pc", checked="reference:reference.naive_selects.PC")
class PC(Propose):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"decay": (0.25, 0.0, 1.0)}
    _surprisal: ClassVar[Tensor | None] = None  # [V] -ln f; an instance has its own once a corpus is counted

    decay: Annotated[float, "decay of the score per position of the block"] = 0.25
    cap: Annotated[float, "upper bound of the rarity-weighted probability"] = 10.0
    corpus: Annotated[
        str | None, "token counts: a text file, a .json file, or `tasks`; none: the package's table for the model"
    ] = None

    def __post_init__(self) -> None:
        self.require("decay", "cap", least=0)

    @property
    def default_select(self) -> str:
        return "fixed"

    def fit(self, model: LanguageModel) -> PC:
        corpus = table_for(model) if self.corpus is None else self.corpus
        if corpus is None:
            return self
        counted = replace(self, corpus=corpus)
        object.__setattr__(counted, "_surprisal", -token_frequencies(corpus, model).log().to(model.device))
        return counted

    def propose(self, evidence: Evidence, canvas: Canvas) -> Proposal:
        tokens, distribution = evidence.draw(canvas), evidence.distribution
        rarity = math.log(distribution.vocab) if self._surprisal is None else self._surprisal[tokens]
        offset = torch.arange(tokens.shape[1], device=tokens.device)
        score = (distribution.probability(tokens) * rarity).clamp(max=self.cap) * (-self.decay * offset).exp()
        return evidence.propose(tokens, score)


TABLES = EMBEDDED / "frequencies"
_HINT = 'a .json file holds {"num_token": N, "p_baseline_dict": {"<id>": count}}, any other one UTF-8 text'


def table_names() -> list[str]:
    """Names of the tables that ship with the package, sorted."""
    return sorted(file.stem for file in TABLES.glob("*.json"))


def table_for(model: LanguageModel) -> str | None:
    """The name of the table in the package that was counted for this model."""
    return next((name for name in table_names() if model.name in _read(_file(name))["models"]), None)


def token_frequencies(corpus: str, model: LanguageModel) -> Tensor:
    """The share of each token in a corpus, float32 [V]; 1 / N for a token that does not occur in its N tokens.

    Args:
        corpus: a table of the package, a .json file of counts as PC-Sampler publishes them, or a file of text, whose
            tokens are counted here.

    Raises:
        SpecError: there is no such file, it cannot be read, it has no tokens or ids that the model has not, or it is
            text and the model has no tokenizer.
    """
    file = _file(corpus)
    counts, total = _counts(file) if file.suffix == ".json" else _counted(file, model)
    if not counts:
        raise SpecError(f"pc: {file} has no tokens", hint=_HINT)
    if min(counts) < 0 or max(counts) >= model.vocab_size:
        raise SpecError(
            f"pc: {file} counts ids up to {max(counts)}, and {model.name} has {model.vocab_size} ids",
            hint="use counts that were made with this model's tokenizer",
        )
    frequencies = torch.full((model.vocab_size,), 1 / total)
    frequencies[torch.tensor(list(counts))] = torch.tensor([count / total for count in counts.values()])
    return frequencies


def _file(corpus: str) -> Path:
    if corpus in table_names():
        return TABLES / f"{corpus}.json"
    file = Path(corpus).expanduser()
    if not file.is_file():
        raise SpecError(f"pc: there is no file {corpus}{did_you_mean(corpus, table_names())}", hint=_HINT)
    return file


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"pc: {file} cannot be read: {one_line(error)}", hint=_HINT) from error
    if not isinstance(content, dict):
        raise SpecError(f"pc: {file} is no table of counts", hint=_HINT)
    return content


def _counts(file: Path) -> tuple[dict[int, float], float]:
    """The counts of a table and the number of tokens counted, some of which it may not list."""
    content = _read(file)
    try:
        counts = {int(token): float(count) for token, count in content["p_baseline_dict"].items()}
        total = float(content["num_token"])
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise SpecError(f"pc: {file} is no table of counts: {one_line(error)}", hint=_HINT) from error
    if not all(0 < count <= total for count in counts.values()) or not sum(counts.values()) <= total < math.inf:
        raise SpecError(f"pc: {file} has counts that are not above 0, or more than its num_token", hint=_HINT)
    return counts, total


def _counted(file: Path, model: LanguageModel) -> tuple[dict[int, float], float]:
    if model.tokenizer is None:
        raise SpecError(f"pc: {file} is text, and {model.name} has no tokenizer", hint="name a .json file of counts")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SpecError(f"pc: {file} cannot be read as text: {one_line(error)}", hint=_HINT) from error
    counts = Counter[int](model.tokenizer(text, add_special_tokens=False)["input_ids"])
    return dict(counts), counts.total()
