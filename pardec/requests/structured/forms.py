"""The forms of `response_format=`, and the JSON schema keywords that are supported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pardec.models.errors import SpecError

ANNOTATIONS = {
    *("title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly"),
    *("$schema", "$id", "$comment", "$defs", "definitions", "$anchor", "discriminator"),
}
OF_TYPE: Mapping[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "boolean": (),
    "null": (),
}


def form_of(argument: Any) -> dict[str, Any] | bool | None:
    """The schema of `response_format=`; True allows any object, None is no constraint.

    Raises SpecError for a form that is neither OpenAI's nor a JSON schema.
    """
    hint = 'write {"type": "json_schema", "json_schema": {"schema": {...}}}, {"type": "json_object"}, or a JSON schema'
    if not isinstance(argument, Mapping):
        raise SpecError(f"response_format must be a dict (a JSON object), got {type(argument).__name__}", hint=hint)
    kind = argument.get("type")
    if kind in ("text", "json_object") or kind == "json_schema":
        allowed = {"type", "json_schema"} if kind == "json_schema" else {"type"}
        extra = [name for name in argument if name not in allowed]
        if extra:
            raise SpecError(f"response_format of type {kind!r} has no {extra[0]!r}", hint=hint)
        if kind != "json_schema":
            return None if kind == "text" else True
        inner = argument.get("json_schema")
        if not isinstance(inner, Mapping) or not isinstance(inner.get("schema"), Mapping | bool):
            raise SpecError("response_format has no json_schema.schema", hint=hint)
        return inner["schema"] if isinstance(inner["schema"], bool) else dict(inner["schema"])
    known = {*ANNOTATIONS, "type", "anyOf", "oneOf", "allOf", "enum", "const", "$ref"}
    if argument and not known & set(argument) and not any(set(argument) & set(each) for each in OF_TYPE.values()):
        raise SpecError(f"response_format has none of a JSON schema's keywords, got {sorted(argument)}", hint=hint)
    return dict(argument)
