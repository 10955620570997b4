"""`response_format=` of one call: a template for a masked model, one grammar per row for an autoregressive one."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError
from pardec.samplers.request import Ending, Request

from ..prompts import Row
from ..settings import FILLING, Settings
from ..stop_strings import StructuredStops
from ..tools import Tools
from .call_grammar import CallGrammar
from .forms import form_of
from .json_grammar import JsonGrammar, check_budget, compiled
from .schema import mark_within_limits, read
from .template import Template, TemplateEnd, template
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel

_MOST_TEMPLATES = 16  # templates kept in memory
_MOST_BYTES = 2**18  # largest schema


@dataclass(frozen=True, eq=False)
class Structure:
    """The constraint of a call's rows by a schema: a template or grammars."""

    template: Template | None = None
    grammars: tuple[JsonGrammar | CallGrammar, ...] = ()

    def filled(self, rows: Sequence[Row]) -> list[Row]:
        """The rows, with the template after each prompt."""
        return [row if self.template is None else Row(row.prompt, self.template.rest) for row in rows]

    def hold(self, request: Request) -> Request:
        """The request, constrained to the schema."""
        if self.template is None:
            strings = request.stops or (None,) * len(self.grammars)
            stops = tuple(map(_ending, self.grammars, strings))
            return replace(request, grammars=self.grammars, stops=stops)
        constrained_spans = tuple(self.template.constrained_spans_of(start) for start in request.prompts)
        return replace(
            request,
            allowed=self.template.allowed(request.prompts),
            constrained_spans=constrained_spans if any(constrained_spans) else (),
            stops=(TemplateEnd(len(self.template.rest)),) * len(request.prompts),
        )


def _ending(grammar: JsonGrammar | CallGrammar, stops: Any) -> Ending:
    """What ends a row: its grammar and, if there are any, its stop strings."""
    return grammar if stops is None else StructuredStops(stops.tokenizer, stops.texts, grammar=grammar)


def structure(
    model: LanguageModel, settings: Settings, rows: int, stop_ids: Sequence[int], tools: Tools | None = None
) -> Structure | None:
    """Like `_structure`, but raises SpecError also for a schema that is nested too deeply for Python."""
    name = "response_format" if tools is None else "tools"
    try:
        if tools is not None:
            return _calls(model, settings, rows, stop_ids, tools)
        return _structure(model, settings, rows, stop_ids)
    except RecursionError:
        raise SpecError(f"{name} is nested too deeply", hint="ask for less in one answer") from None


def _calls(
    model: LanguageModel, settings: Settings, rows: int, stop_ids: Sequence[int], tools: Tools
) -> Structure | None:
    """The structure of rows that may call tools; None for a masked model, which fills a template."""
    masked = model.decoding_config.masked
    for name in ("response_format", *FILLING):
        if getattr(settings, name) and name != ("template" if masked else "stop"):
            raise SpecError(f"{name} cannot be combined with tools", hint=f"leave {name} out")
    if masked:
        return None
    vocabulary = Vocabulary.of(model.tokenizer, model.vocab_size)
    first = CallGrammar(tools, vocabulary, settings.max_new_tokens, stop_ids)
    return Structure(grammars=(first, *(copy(first) for _ in range(rows - 1))))


def _structure(model: LanguageModel, settings: Settings, rows: int, stop_ids: Sequence[int]) -> Structure | None:
    """The structure that `settings.response_format` requests; None for no constraint, or text.

    Raises:
        SpecError: naming the path of an unsupported part, or the argument that cannot be combined with it.
    """
    if settings.response_format is None or (form := form_of(settings.response_format)) is None:
        return None
    if model.tokenizer is None:
        raise SpecError(
            f"response_format is text and {model.name} comes without a tokenizer",
            hint="put tokenizer.json next to the weights",
        )
    for name in FILLING:
        if getattr(settings, name) and (name != "stop" or model.decoding_config.masked):
            why = f" on {model.name}, whose template has a fixed length" if name == "stop" else ""
            raise SpecError(f"{name} cannot be combined with response_format{why}", hint=f"leave {name} out")
    vocabulary, budget = Vocabulary.of(model.tokenizer, model.vocab_size), settings.max_new_tokens
    text = _text(form)
    if not model.decoding_config.masked:
        grammar = compiled(text, vocabulary)
        check_budget(grammar.prefixes.cost(0), budget, "response_format: its shortest answer")
        return Structure(grammars=tuple(JsonGrammar(grammar, budget, stop_ids) for _ in range(rows)))
    if settings.stop_ids is not None:
        raise SpecError(
            f"stop_ids cannot be combined with response_format on {model.name}, whose template has a fixed length",
            hint="leave stop_ids out",
        )
    decoding_config = model.decoding_config
    assert decoding_config.mask_id is not None, "a masked model has one"
    ends = dict.fromkeys((*decoding_config.eos_ids, decoding_config.pad_id))
    pads = [token for token in ends if token in vocabulary.special and token != decoding_config.mask_id]
    if not pads:
        raise SpecError(
            f"response_format needs an end or pad token that text leaves out, and {model.name} has none",
            hint="ask for JSON in the prompt instead",
        )
    key = (text, vocabulary, budget)
    if key not in _TEMPLATES:
        schema = read(form, ascii=not vocabulary.writes(text))
        result = template(schema, vocabulary, budget, mask_id=decoding_config.mask_id, pads=pads)
        _keep(key, result)
    return Structure(_TEMPLATES[key])


_TEMPLATES: OrderedDict[tuple[str, Vocabulary, int], Template] = OrderedDict()


def _keep(key: tuple[str, Vocabulary, int], result: Template) -> None:
    _TEMPLATES[key] = result
    while len(_TEMPLATES) > _MOST_TEMPLATES:
        _TEMPLATES.popitem(last=False)


def remember(model: LanguageModel, response_format: Any, budget: int, matched: Structure | None) -> None:
    """Stores the results of another process: that a schema is within the limits, and its template."""
    text = _text(form_of(response_format))
    mark_within_limits(text)
    if matched is not None and matched.template is not None:
        _keep((text, Vocabulary.of(model.tokenizer, model.vocab_size), budget), matched.template)


def mark_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Stores the result of another process: that the schemas of these tools are within the limits."""
    for tool in tools:
        mark_within_limits(_text(tool["function"].get("parameters")))


def _text(form: Any) -> str:
    """The schema as JSON text. Raises SpecError if it is not JSON, or too large."""
    try:
        text = json.dumps(form, ensure_ascii=False)
        size = len(text.encode())
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise SpecError(f"response_format holds a lone surrogate, {half!a}", hint="write the whole character") from None
    except (TypeError, ValueError) as error:
        raise SpecError(f"response_format is not JSON: {error}", hint="write it with dicts, lists and texts") from error
    if size > _MOST_BYTES:
        raise SpecError(
            f"response_format has {size} bytes, and the most is {_MOST_BYTES}", hint="write a shorter schema"
        )
    return text
