"""Classification: the probabilities of given labels in the slots of an answer.

A masked model is asked once: every slot of the answer is masked, and one forward gives the log-probability of each
label, the sum over its tokens with all slots open,

    l(label) = sum over i of log p(token i | prompt, answer, masks in every slot),   P(label) = softmax of l over labels

A slot has as many masks as the label has tokens, as when a label's likelihood is measured: labels of several lengths
are read from one row for each length, all of them in the same batch, while other slots are as long as their longest
label. An autoregressive model is given each label: l is its exact log-likelihood after the answer so far, in which
earlier slots hold their likeliest labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING, Any

import torch

from pardec.models.errors import SpecError, did_you_mean

from .likelihood import Likelihood
from .requests.prompts import check_length, encode, encode_plain
from .token_probabilities import Batches, Query, TokenProbabilities

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel

_ROWS = 32  # rows per forward; fewer if memory runs out


@dataclass(frozen=True, slots=True)
class Choice:
    """The labels of one prompt.

    Attributes:
        best: the likeliest label of each slot; of equal ones the first.
        probabilities: of each label of each slot; those of a slot sum to 1.
        log_likelihoods: of each label, in nats, over all texts and not only the labels.
    """

    best: dict[str, str]
    probabilities: dict[str, dict[str, float]]
    log_likelihoods: dict[str, dict[str, float]]

    @staticmethod
    def of(log_likelihoods: dict[str, dict[str, float]]) -> Choice:
        """The choice by these log-likelihoods."""
        best, probabilities = {}, {}
        for slot, values in log_likelihoods.items():
            shares = torch.tensor(list(values.values()), dtype=torch.float64).softmax(0).tolist()
            probabilities[slot] = dict(zip(values, shares, strict=True))
            best[slot] = max(values, key=lambda label: values[label])
        return Choice(best, probabilities, log_likelihoods)


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of the answer: the ids of the text between the previous slot and this one, and the ids of its labels."""

    name: str
    before: list[int]
    labels: dict[str, list[int]]

    @property
    def lengths(self) -> list[int]:
        """The lengths of its labels, the longest first."""
        return sorted({len(ids) for ids in self.labels.values()}, reverse=True)


@dataclass(frozen=True, slots=True)
class Form:
    """An answer with slots, as ids."""

    slots: list[Slot]
    after: list[int]

    @property
    def layouts(self) -> list[tuple[list[int], list[int]]]:
        """The rows per prompt of a masked model: the masks of each slot, and the slots whose labels are read from it.

        The first has the longest labels of all slots, each further one a shorter length of one slot.
        """
        longest = [slot.lengths[0] for slot in self.slots]
        shorter = [
            ([*longest[:index], length, *longest[index + 1 :]], [index])
            for index, slot in enumerate(self.slots)
            for length in slot.lengths[1:]
        ]
        return [(longest, list(range(len(self.slots)))), *shorter]

    @property
    def rows(self) -> dict[bool, int]:
        """The rows per prompt, of a masked model (True) and of an autoregressive one (False)."""
        return {True: len(self.layouts), False: sum(len(slot.labels) for slot in self.slots)}

    def row(self, prompt: list[int], mask: int, lengths: Sequence[int]) -> tuple[list[int], list[int]]:
        """The ids of a row whose slots have these many masks, and where each slot begins."""
        ids, starts = list(prompt), []
        for slot, length in zip(self.slots, lengths, strict=True):
            ids += slot.before
            starts.append(len(ids))
            ids += [mask] * length
        return ids + self.after, starts


def prompts_of(model: LanguageModel, prompt: Any, input_ids: Any) -> list[list[int]]:
    """The ids of each prompt. Raises SpecError."""
    rows = [row.prompt.tolist() for row in encode(model, prompt, input_ids, None, 1)]
    for index, ids in enumerate(rows):
        if not ids:
            raise SpecError(f"prompt {index} is empty", hint="a choice needs a prompt before the answer")
    return rows


def form_of(model: LanguageModel, slots: Any, answer: Any) -> Form:
    """Reads slots and answer. Raises SpecError, naming the slot and the label that cannot work."""
    if model.imaging is not None or model.tokenizer is None:
        raise SpecError(f"{model.name} has no text tokenizer, which labels need", hint="use a model of text with one")
    if model.decoding_config.uniform:
        raise SpecError(f"{model.name} has no mask token that could hide a label", hint="use another masked model")
    texts = _labels(slots)
    answer = "\n".join(f"{name}: {{{name}}}" for name in texts) if answer is None and len(texts) > 1 else answer
    pieces, after = _pieces(texts, f"{{{next(iter(texts))}}}" if answer is None else answer)
    read, written = [], ""  # a text before the next piece, for tokens that depend on it
    for name, before in pieces:
        literal = before.rstrip(" ")
        space = before[len(literal) :]  # belongs to the label, as tokenizers that join a space to a word have it
        labels = {text: _continuation(model, literal, space + text) for text in texts[name]}
        _check(name, labels, masked=model.decoding_config.masked)
        read.append(Slot(name, _continuation(model, written, literal), labels))
        written = literal + space + texts[name][0]
    return Form(read, _continuation(model, written, after))


def choose(model: LanguageModel, prompts: Sequence[list[int]], form: Form) -> list[Choice]:
    """The choice for each prompt. Raises SpecError for rows that are longer than the model's context."""
    longest = sum(len(slot.before) + slot.lengths[0] for slot in form.slots) + len(form.after)
    check_length(model, [len(ids) + longest for ids in prompts])
    probabilities = TokenProbabilities(model, Batches(_ROWS, auto=True))
    if model.decoding_config.masked:
        return _from_canvases(probabilities, prompts, form)
    return _from_likelihoods(Likelihood(probabilities), prompts, form)


def _from_canvases(probabilities: TokenProbabilities, prompts: Sequence[list[int]], form: Form) -> list[Choice]:
    mask = probabilities.model.decoding_config.mask_id
    assert mask is not None, "a masked model has one"
    layouts = form.layouts
    read = [  # per layout: the labels, with their slot
        [(slot, label) for slot in asked for label, ids in form.slots[slot].labels.items() if len(ids) == lengths[slot]]
        for lengths, asked in layouts
    ]
    queries = []
    for ids in prompts:
        for (lengths, _), labels in zip(layouts, read, strict=True):
            row, starts = form.row(ids, mask, lengths)
            tokens = [(starts[slot], form.slots[slot].labels[label]) for slot, label in labels]
            at = [start + index for start, own in tokens for index in range(len(own))]
            queries.append(Query(row, at, [token for _, own in tokens for token in own]))
    answers = iter(probabilities.query(queries))
    choices = []
    for _ in prompts:
        sums: list[dict[str, float]] = [dict.fromkeys(slot.labels, 0.0) for slot in form.slots]
        for labels in read:
            values = iter(next(answers).log_prob.tolist())
            for slot, label in labels:
                sums[slot][label] = sum(next(values) for _ in form.slots[slot].labels[label])
        choices.append(Choice.of({slot.name: own for slot, own in zip(form.slots, sums, strict=True)}))
    return choices


def _from_likelihoods(likelihood: Likelihood, prompts: Sequence[list[int]], form: Form) -> list[Choice]:
    contexts, found = [list(ids) for ids in prompts], [dict[str, dict[str, float]]() for _ in prompts]
    for slot in form.slots:
        contexts = [ids + slot.before for ids in contexts]
        pairs = [(ids, label) for ids in contexts for label in slot.labels.values()]
        values = iter(likelihood.score(pairs))
        for index, own in enumerate(found):
            own[slot.name] = {label: next(values)[0] for label in slot.labels}
            contexts[index] = contexts[index] + slot.labels[Choice.of(own).best[slot.name]]
    return [Choice.of(own) for own in found]


def _labels(slots: Any) -> dict[str, list[str]]:
    """The labels of each slot as texts."""
    example = 'slots={"mood": ["good", "bad"]}'
    if not isinstance(slots, Mapping) or not slots:
        raise SpecError(f"slots must map each name to its labels, got {slots!r}", hint=example)
    read: dict[str, list[str]] = {}
    for name, labels in slots.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise SpecError(f"slots has the name {name!r}, and a name must be a word without spaces", hint=example)
        if isinstance(labels, str) or not isinstance(labels, Sequence) or len(labels) < 2:
            raise SpecError(f"slots: {name} needs at least two labels, got {labels!r}", hint=example)
        for label in labels:
            if not isinstance(label, str) or not label:
                raise SpecError(f"slots: {name} has the label {label!r}, and a label must be text", hint=example)
            if list(labels).count(label) > 1:
                raise SpecError(f"slots: {name} has the label {label!r} twice", hint="name each label once")
        read[name] = list(labels)
    return read


def _pieces(texts: Mapping[str, Any], answer: Any) -> tuple[list[tuple[str, str]], str]:
    """The slots of an answer, each with the text before it, and the text after the last."""
    hint = f"each slot stands in it once, as {{{next(iter(texts))}}}; double braces are plain ones"
    if not isinstance(answer, str):
        raise SpecError(f"answer must be text with slots, got {answer!r}", hint=hint)
    pieces: list[tuple[str, str]] = []
    before = ""
    try:
        for literal, name, form, conversion in Formatter().parse(answer):
            before += literal
            if name is None:
                continue
            if form or conversion:
                raise SpecError(f"answer has a conversion or format after the slot {name!r}", hint=hint)
            if name not in texts:
                raise SpecError(f"answer has a slot {name!r} without labels{did_you_mean(name, texts)}", hint=hint)
            if name in dict(pieces):
                raise SpecError(f"answer has the slot {name!r} twice", hint=hint)
            pieces.append((name, before))
            before = ""
    except ValueError as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"answer {answer!r} cannot be read: {error}", hint=hint) from None
    missing = [name for name in texts if name not in dict(pieces)]
    if missing:
        raise SpecError(f"answer has no slot {missing[0]!r}", hint=hint)
    return pieces, before


def _ids(model: LanguageModel, text: str) -> list[int]:
    """Text as ids, none for an empty one. Raises SpecError for the mask token."""
    ids = encode_plain(model, [text])[0] if text else []
    if model.decoding_config.mask_id in ids:
        raise SpecError(f"{text!r} holds the mask token", hint="slots are named in braces, and labels are plain text")
    return ids


def _continuation(model: LanguageModel, before: str, text: str) -> list[int]:
    """The ids of a text after another one; tokens that would join both are split between them."""
    first, whole = _ids(model, before), _ids(model, before + text)
    return whole[len(first) :] if whole[: len(first)] == first else _ids(model, text)


def _check(name: str, labels: Mapping[str, list[int]], *, masked: bool) -> None:
    """Refuses labels that cannot be told apart."""
    seen: dict[tuple[int, ...], str] = {}
    for label, ids in labels.items():
        if not ids:
            raise SpecError(f"slots: the label {label!r} of {name} has no tokens", hint="leave it out")
        if (other := seen.setdefault(tuple(ids), label)) != label:
            raise SpecError(f"slots: {name} has {other!r} and {label!r}, which have the same tokens", hint="keep one")
        for longer, more in labels.items():
            # From left to right, a label is never less likely than one that it begins.
            if not masked and longer != label and more[: len(ids)] == ids:
                raise SpecError(
                    f"slots: the label {label!r} of {name} begins the label {longer!r}",
                    hint="end both with the same text, such as a period",
                )
