"""`pardec view`: a saved result in the terminal, as HTML, as a picture or an animation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..io import output_paths
from .common import Debug, say

if TYPE_CHECKING:
    from ..result import Result


def view(
    result: Annotated[Path, typer.Argument(help="What result.save or generate -o wrote.")],
    html: Annotated[Path | None, typer.Option(help="Write one HTML file with a slider.")] = None,
    gif: Annotated[Path | None, typer.Option(help="Write an animation of the decode order.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write a picture of the decode order.")] = None,
    debug: Debug = False,
) -> None:
    """Show a saved result, each token in the colour of the forward that committed it.

    pardec generate tiny-dream -p "Tom has 3 cups." -o run.json && pardec view run.json --html run.html
    """
    for target in (html, gif, png):
        output_paths.check_file(target)

    from ..io.saving import write_file
    from ..result import Result

    loaded = Result.load(result)
    for target, make in ((html, _html), (gif, _gif), (png, _png)):
        if target is not None:
            write_file(target, make(loaded))
            say(f"wrote {target}")
    if html is None and gif is None and png is None:
        from rich.console import Console

        from ..views.terminal import finished

        Console(highlight=False).print(finished(loaded))


def _html(loaded: Result) -> str:
    from ..views.html import page

    return page(loaded)


def _gif(loaded: Result) -> bytes:
    from ..views.picture import gif

    return gif(loaded)


def _png(loaded: Result) -> bytes:
    from ..views.picture import png

    return png(loaded)
