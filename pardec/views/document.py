"""Self-contained HTML files: style, script and data are inside, nothing is fetched."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from pardec.models.printable import plain


def asset(package: str, name: str) -> str:
    """The text of a file inside `package`."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def web(*names: str) -> list[str]:
    """The named style sheets or scripts of the views."""
    return [asset("pardec.views", f"web/{name}") for name in names]


def document(
    title: str,
    body: str,
    *,
    styles: Sequence[str],
    scripts: Sequence[str],
    data: Mapping[str, Any] | None = None,
    connects: bool = False,
) -> str:
    """A complete page.

    Args:
        title: plain text.
        body: HTML.
        styles: CSS, concatenated.
        scripts: JavaScript, concatenated to one module.
        data: what the script reads as `data`; NaN and infinities become null.
        connects: whether the script may ask the server that the page comes from.
    """
    return fill(
        asset("pardec.views", "web/document.html"),
        title=plain(escape(title)),
        style="\n".join(styles),
        body=plain(body),
        connects="; connect-src 'self'" if connects else "",
        data=embedded({} if data is None else data),
        script="\n".join(scripts),
    )


def fill(template: str, **values: str) -> str:
    """The template with every {{name}} replaced; inserted values are not expanded again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def spec(text: str) -> str:
    """A spec as HTML that can break its line after each separator."""
    return "<code>" + re.sub("([+@:,])", "\\1<wbr>", escape(text)) + "</code>"


def embedded(data: Any) -> str:
    """JSON that is safe in a script element whatever strings it contains."""
    text = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """The value with null for NaN and infinities, and with control and bidi characters spelled out."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {plain(str(key)): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
