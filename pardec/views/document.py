"""One HTML file that holds all it shows: style, script and data inside, nothing fetched."""

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
    """The text of a file that lies in `package`."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def web(*names: str) -> list[str]:
    """Styles or scripts that the views share."""
    return [asset("pardec.views", f"web/{name}") for name in names]


def document(
    title: str, body: str, *, styles: Sequence[str], scripts: Sequence[str], data: Mapping[str, Any] | None = None
) -> str:
    """A whole page.

    Args:
        title: plain text.
        body: HTML.
        styles: CSS, one after the other.
        scripts: JavaScript, joined to one module.
        data: what the script reads as `data`; numbers that JSON lacks become null.
    """
    return fill(
        asset("pardec.views", "web/document.html"),
        title=plain(escape(title)),
        style="\n".join(styles),
        body=plain(body),
        data=embedded({} if data is None else data),
        script="\n".join(scripts),
    )


def fill(template: str, **values: str) -> str:
    """The template with every {{name}} replaced; what is put in is not read again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)


def spec(text: str) -> str:
    """A spec as HTML that breaks where its parts join."""
    return "<code>" + re.sub("([+@:,])", "\\1<wbr>", escape(text)) + "</code>"


def embedded(data: Any) -> str:
    """JSON that can stand in a script element whatever texts it holds."""
    text = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """The value without numbers that JSON lacks, and with texts that reorder no line of the page."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {plain(str(key)): _finite(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(held) for held in value]
    return value
