"""Tools: how a chat template shows them and writes calls of them, and the calls in an answer.

The form of a call is read from the template itself, by rendering an answer with a call: Hermes' and Qwen's
`<tool_call>` blocks, Llama's bare objects and Mistral's lists are all found so. A template that leaves tools out gets
them as text of a message, in Hermes' form (https://github.com/NousResearch/Hermes-Function-Calling).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from pardec.models.errors import SpecError
from pardec.models.files.json_text import parse
from pardec.models.files.token_bytes import special_ids

from .structured.forms import ANNOTATIONS

MOST_TOOLS = 128
_HINT = 'a tool is {"type": "function", "function": {"name": "...", "parameters": {a JSON schema}}}'
_CHOICES = '"auto", "none", "required" or {"type": "function", "function": {"name": "..."}}'
_QUESTION = {"role": "user", "content": "Q"}
_DESCRIPTION = "A tool that is shown"
_SHOWN = """You can call these functions:
{tools}
To call one, answer with
<tool_call>
{{"name": its name, "arguments": an object}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class CallForm:
    """How calls are written: `opening`, objects separated by `between`, `closing`.

    Attributes:
        head, middle, tail: the text of an object before the name, between name and arguments, and after them.
        between: None where an answer holds one call at most.
        shown: whether the template shows tools; else pardec describes them in a message.
    """

    opening: str
    head: str
    middle: str
    tail: str
    between: str | None
    closing: str
    shown: bool = True
    is_special: bool = False  # whether the trigger is a special token, which decoded text leaves out

    @property
    def _marker(self) -> str:
        return self.opening.split(maxsplit=1)[0] if self.opening.strip() else ""

    @property
    def starts_answer(self) -> bool:
        """Whether a call is known by the first character of the answer; else by a marker at any place."""
        return not self._marker or self._marker == "[" or self._marker[0] == "{"

    @property
    def trigger(self) -> str:
        """The text that begins a call: a marker, or the first character of the answer."""
        return (self.opening + self.head).strip()[0] if self.starts_answer else self._marker

    @property
    def lead(self) -> str:
        """The text between the trigger and the name of the first call."""
        return (self.opening + self.head).partition(self.trigger)[2]

    def write(self, name: str, arguments: str) -> str:
        """One call as an object, with its arguments as JSON."""
        return self.head + json.dumps(name)[1:-1] + self.middle + arguments + self.tail

    def find(self, text: str) -> int:
        """Where the trigger of a call begins in the text of an answer; -1 where there is none."""
        if not self.starts_answer:
            return text.find(self.trigger)
        start = len(text) - len(text.lstrip())
        return start if text.startswith(self.trigger, start) else -1

    def may_begin(self, text: str) -> bool:
        """Whether `text`, the beginning of an answer, has a call, or one that begins with its last characters."""
        if self.find(text) >= 0:
            return True
        if self.starts_answer:
            return not text.strip()
        return any(text.endswith(self.trigger[:size]) for size in range(1, len(self.trigger)))

    def read(self, text: str) -> tuple[str, list[tuple[str, str]]]:
        """The text before the calls of an answer, and each call's name and arguments as JSON text.

        All is text where it has no whole call.
        """
        at = self.find(text)
        if at < 0:
            return text, []
        sample: dict[str, Any] = json.loads(self.write("N", "{}"))
        values: tuple[Any, ...] = ("N", {})
        name_key, arguments_key = (next(key for key in sample if sample[key] == value) for value in values)
        calls: list[tuple[str, str]] = []
        position = text.find("{", at if self.starts_answer else at + len(self.trigger))
        while position >= 0:
            decoded = _decoded(text, position)
            if decoded is None:
                break
            inner, position = decoded
            while isinstance(inner, dict) and name_key not in inner:  # {"type": "function", "function": {...}}
                inner = next((each for each in inner.values() if isinstance(each, dict)), None)
            if not isinstance(inner, dict) or not isinstance(inner.get(arguments_key), dict):
                break
            calls.append((str(inner[name_key]), json.dumps(inner[arguments_key], ensure_ascii=False)))
            position = text.find("{", position)
        return (text[:at], calls) if calls else (text, [])


HERMES = CallForm(
    opening="<tool_call>\n",
    head='{"name": "',
    middle='", "arguments": ',
    tail="}",
    between="\n</tool_call>\n<tool_call>\n",
    closing="\n</tool_call>",
    shown=False,
)


@dataclass(frozen=True, slots=True, eq=False)
class Tools:
    """The tools of one request.

    Attributes:
        names: of the functions that may be called.
        required: whether the answer is a call.
        parallel: whether it may hold several.
    """

    definitions: Sequence[Mapping[str, Any]]
    names: tuple[str, ...]
    required: bool
    parallel: bool
    form: CallForm

    @property
    def parameters(self) -> dict[str, Mapping[str, Any]]:
        """The schema of the arguments of each function that may be called."""
        each = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in self.definitions}
        nothing = {"type": "object", "properties": {}, "additionalProperties": False}
        return {name: nothing if _takes_nothing(each[name]) else each[name] for name in self.names}


def _takes_nothing(parameters: Mapping[str, Any]) -> bool:
    """Whether a schema names no arguments and does not say that others are allowed: a function without arguments."""
    said = {key for key, value in parameters.items() if value or key not in ("properties", "required")}
    said -= {*ANNOTATIONS, "type"}
    return not said or (said == {"additionalProperties"} and parameters["additionalProperties"] is False)


def check_tools(name: str, value: Any, example: str) -> None:
    """Raises SpecError for a list that is not one of functions in OpenAI's form."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > MOST_TOOLS:
        raise SpecError(f"tools are a list of at most {MOST_TOOLS} functions", hint=_HINT)
    names: set[str] = set()
    for at, tool in enumerate(value):
        inner = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
        if not isinstance(inner, Mapping):
            raise SpecError(f"tools[{at}] is not a function", hint=_HINT)
        own = inner.get("name")
        if not isinstance(own, str) or not re.fullmatch("[a-zA-Z0-9_.-]{1,64}", own):
            raise SpecError(f"tools[{at}] has no name of letters, digits, - and _, got {own!r}", hint=_HINT)
        if own in names:
            raise SpecError(f"tools has the name {own!r} twice", hint="give each function a name of its own")
        names.add(own)
        parameters = inner.get("parameters")
        if parameters is not None and (
            not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object"
        ):
            raise SpecError(f"the parameters of {own} are not the schema of an object", hint=_HINT)


def check_choice(name: str, value: Any, example: str) -> None:
    """Raises SpecError for a `tool_choice` of another form than OpenAI's."""
    if isinstance(value, str) and value in ("auto", "none", "required"):
        return
    inner = value.get("function") if isinstance(value, Mapping) and value.get("type") == "function" else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise SpecError(f"unknown tool_choice {value!r}", hint=_CHOICES)


def tools_of(model: Any, settings: Any) -> Tools | None:
    """The tools that an answer may call; None where there are none. Raises SpecError for those that cannot work."""
    choice, definitions = settings.tool_choice or "auto", settings.tools or ()
    if not definitions:
        if choice not in ("auto", "none"):
            hint = "give tools, or leave tool_choice out"
            raise SpecError(f"tool_choice={choice!r} and there are no tools", hint=hint)
        return None
    if choice == "none":
        return None
    if model.decoding_config.masked and (settings.template is None or choice != "auto"):
        raise SpecError(
            f"tools cannot be called by {model.name}, which is masked and fills positions in any order",
            hint='give a template that writes the call, leave tools out, or pass tool_choice="none"',
        )
    names = tuple(tool["function"]["name"] for tool in definitions)
    if isinstance(choice, Mapping):
        chosen = choice["function"]["name"]
        if chosen not in names:
            raise SpecError(f"tool_choice names {chosen!r}, which is not among the tools", hint=f"one of {names}")
        names = (chosen,)
    form = form_of(model)
    parallel = settings.parallel_tool_calls is not False and form.between is not None
    return Tools(definitions, names, choice != "auto", parallel and not isinstance(choice, Mapping), form)


# --- prompts ---


def shown(prompt: Any, tools: Any, choice: Any) -> Any:
    """The tools that a conversation shows; none where the prompt is given as ids, or no call is to be made."""
    return tools if prompt is not None and choice != "none" else None


def conversation(model: Any, messages: Sequence[Mapping[str, Any]], tools: Any) -> tuple[list[Any], Any]:
    """A conversation as the chat template takes it, and the tools that are passed to the template.

    Raises:
        SpecError: the arguments of a call are not JSON; no message of the template shows the tools.
    """
    made = [_with_arguments(message) for message in messages]
    if not tools and not any(message.get("tool_calls") or message["role"] == "tool" for message in made):
        return made, None
    if form_of(model).shown:
        return made, tools or None
    made = [_plain(message) for message in made]
    if not tools:
        return made, None
    text = _SHOWN.format(tools="\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools))
    first = made[0]["content"] + "\n\n" if made[0]["role"] == "system" else ""
    with_system = [{"role": "system", "content": first + text}, *(made[1:] if first else made)]
    if text in _render(model, with_system):
        return with_system, None
    last = max((at for at, message in enumerate(made) if message["role"] == "user"), default=None)
    if last is not None:  # such a template leaves system messages out
        made[last] = {**made[last], "content": f"{text}\n\n{made[last]['content']}"}
        if text in _render(model, made):
            return made, None
    raise SpecError(f"the chat template of {model.name} shows no tools", hint="leave tools out")


def _with_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose calls have their arguments as objects, which templates expect."""
    if not message.get("tool_calls"):
        return dict(message)
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        problem = ""
        try:
            value = parse(arguments, unique=True) if isinstance(arguments, str) else arguments
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:  # also of numbers that Python reads as infinity
            value, problem = None, f": {error}"
        if not isinstance(value, Mapping):
            raise SpecError(
                f"the arguments of a tool call in messages are not a JSON object{problem}", hint='as "{\\"x\\": 1}"'
            )
        calls.append({**call, "function": {**call["function"], "arguments": value}})
    return {**message, "content": message.get("content") or "", "tool_calls": calls}


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its calls, or the result of one, as text."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return dict(message)
    each = [call["function"] for call in message["tool_calls"]]
    objects = [HERMES.write(call["name"], json.dumps(call["arguments"], ensure_ascii=False)) for call in each]
    text = HERMES.opening + (HERMES.between or "").join(objects) + HERMES.closing
    content = message["content"]
    return {"role": message["role"], "content": f"{content}\n{text}" if content else text}


# --- the form of a template ---

_FORMS: WeakKeyDictionary[Any, tuple[str, CallForm | None]] = WeakKeyDictionary()


def form_of(model: Any) -> CallForm:
    """How the model's chat template writes calls, read once. Raises SpecError for a form that is not JSON objects."""
    tokenizer = model.tokenizer
    template = str(tokenizer.chat_template)
    if tokenizer not in _FORMS or _FORMS[tokenizer][0] != template:
        _FORMS[tokenizer] = template, _probe(model)
    form = _FORMS[tokenizer][1]
    if form is None:
        raise SpecError(
            f"the chat template of {model.name} writes calls in another form than JSON objects with name and arguments",
            hint="leave tools out",
        )
    return form


def _probe(model: Any) -> CallForm | None:
    tools = [_tool(0), _tool(1)]
    render = partial(_render, model)
    try:
        if _DESCRIPTION not in render([_QUESTION], tools):
            return HERMES
    except Exception:  # a template that does not know tools may raise errors of any class
        return HERMES
    before = render([_QUESTION], tools)
    ends = [str(model.tokenizer.convert_ids_to_tokens(token)) for token in special_ids(model.tokenizer)]

    def answer(count: int) -> str:
        calls = [_call(at) for at in range(count)]
        whole = render([_QUESTION, {"role": "assistant", "content": "", "tool_calls": calls}], tools, prompt=False)
        same = (at for at, pair in enumerate(zip(whole, before, strict=False)) if pair[0] != pair[1])
        return whole[next(same, min(len(whole), len(before))) :]

    try:
        one = answer(1)
    except Exception:
        return None
    at = one.find("NAME0")
    start, found = at, None
    while at >= 0 and found is None and (start := one.rfind("{", 0, start)) >= 0:
        found = _decoded(one, start)
        if found is not None and not (isinstance(found[0], dict) and "NAME0" in found[0].values()):
            found = None
    if found is None:
        return None
    text = one[start : found[1]]
    name = text.index("NAME0")
    arguments_at = text.find("{", name)
    arguments = _decoded(text, arguments_at) if arguments_at >= 0 else None
    if arguments is None or arguments[0] != {"KEY0": "VALUE0"}:
        return None
    closing = _before_any(one[found[1] :], ends)
    form = CallForm(
        opening=one[:start],
        head=text[:name],
        middle=text[name + len("NAME0") : arguments_at],
        tail=text[arguments[1] :],
        between=None,
        closing=closing if closing.strip() else "",
        is_special=_before_any(one[:start], ends) != one[:start],
    )
    second = text.replace("NAME0", "NAME1").replace("KEY0", "KEY1").replace("VALUE0", "VALUE1")
    second = second.replace("call00000", "call00001")
    try:
        two = answer(2)
    except Exception:  # Llama's raises an error for two calls
        return form
    first, found_second = form.opening + text, two.find(second)
    if not two.startswith(first) or found_second < len(first):
        return form
    between = two[len(first) : found_second]
    return replace(form, between=between if between and _before_any(between, ends) == between else None)


def _render(model: Any, messages: Sequence[Any], tools: Any = None, *, prompt: bool = True) -> str:
    return str(
        model.tokenizer.apply_chat_template(list(messages), tools=tools, tokenize=False, add_generation_prompt=prompt)
    )


def _decoded(text: str, start: int) -> tuple[Any, int] | None:
    """The JSON value that begins there, and where it ends."""
    try:
        return json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        return None


def _before_any(text: str, ends: Sequence[str]) -> str:
    """`text` before the first of these texts."""
    return text[: min((at for end in ends if (at := text.find(end)) >= 0), default=len(text))]


def _tool(at: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {f"KEY{at}": {"type": "string", "description": "a text"}}}
    inner = {"name": f"NAME{at}", "description": _DESCRIPTION, "parameters": schema}
    return {"type": "function", "function": inner}


def _call(at: int) -> dict[str, Any]:
    inner = {"name": f"NAME{at}", "arguments": {f"KEY{at}": f"VALUE{at}"}}
    return {"id": f"call0000{at}", "type": "function", "function": inner}
