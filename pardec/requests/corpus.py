"""Reads the text file in which a sampler counts n-grams."""

from __future__ import annotations

from pathlib import Path

from pardec.models.errors import SpecError, one_line
from pardec.models.model import LanguageModel
from pardec.samplers.speculative.contracts import SpeculativeSampler


def read(sampler: SpeculativeSampler, model: LanguageModel) -> tuple[int, ...] | None:
    """The tokens of the file that the sampler names; None if it names none.

    Raises SpecError for a file that cannot be read or is empty, and for a model without a tokenizer.
    """
    texts = sampler.texts
    if texts is None or texts.needed_corpus is None:
        return None
    file = Path(texts.needed_corpus)
    if model.tokenizer is None:
        raise SpecError(f"corpus={file} is text and {model.name} comes without a tokenizer", hint="leave corpus out")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SpecError(f"corpus={file} cannot be read as text: {one_line(error)}", hint="name a UTF-8 file") from error
    ids = tuple(model.tokenizer(text, add_special_tokens=False)["input_ids"])
    if not ids:
        raise SpecError(f"corpus={file} is empty", hint="name a file with text like the answers")
    return ids
