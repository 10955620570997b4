"""`pardec view`: a saved result in the terminal, as HTML, as an image or an animation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ..io import output_paths
from . import options as o
from .common import say


@o.command
def view(
    result: Annotated[Path, typer.Argument(help="A result saved by result.save or pardec generate -o.")],
    html: Annotated[Path | None, typer.Option(help="Write one HTML file with a slider.")] = None,
    gif: Annotated[Path | None, typer.Option(help="Write an animation of the decode order.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write an image of the decode order.")] = None,
) -> None:
    """Show a saved result, each token in the colour of the forward that committed it.

    pardec generate tiny-dream -p "Tom has 3 cups." -o run.json && pardec view run.json --html run.html
    """
    for target in (html, gif, png):
        output_paths.check_file(target)

    from ..io.saving import write_file
    from ..result import Result
    from ..views import html as page
    from ..views import order_image

    loaded = Result.load(result)
    writers: tuple[tuple[Path | None, Callable[[Result], str | bytes]], ...]
    writers = ((html, page.page), (gif, order_image.gif), (png, order_image.png))
    for target, render in writers:
        if target is not None:
            write_file(target, render(loaded))
            say(f"wrote {target}")
    if html is None and gif is None and png is None:
        from rich.console import Console

        from ..views.terminal import finished

        Console(highlight=False).print(finished(loaded))
