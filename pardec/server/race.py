"""The page at `/`: a prompt, two samplers, and their canvases forward by forward. One file without other requests."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ..cards import list_samplers
from ..requests.chat_template import applies, has_template
from ..views.document import asset, document, fill, web

if TYPE_CHECKING:
    from ..api import Model

_PROMPT = "Tom has 8 cups. He loses 3. How many cups does Tom have now?"
_FASTER = {"masked": "threshold", "ar": "lookup"}  # the page's second sampler; needs no other model


def page(model: Model, name: str, *, key: bool) -> str:
    """The page for a model of text.

    Args:
        name: the model's name for clients.
        key: whether requests need a key, for which the page then has a field.
    """
    stages = ("select", "draft")
    names = [card.name for card in list_samplers() if card.family == model.family and card.stage in stages]
    body = fill(
        asset("pardec.views", "web/race.html"),
        model=escape(name),
        prompt=_PROMPT,
        one="sequential",
        two=_FASTER[model.family],
        chat="" if has_template(model) else "hidden",
        checked="checked" if applies(model, None) else "",
        key="" if key else "hidden",
        samplers="".join(f'<option value="{escape(each, quote=True)}">' for each in names),
    )
    styles = web("page.css", "replay.css", "race.css")
    return document(f"{name}: two samplers", body, styles=styles, scripts=web("page.js", "race.js"), connects=True)
