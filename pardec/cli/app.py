"""The table of commands."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import typer

from ..version import __version__
from .advise import advise
from .align import align
from .bench import bench
from .chat import chat
from .check import check
from .compare import compare
from .environment import env
from .generate import generate
from .image import image
from .listing import list_, show
from .options import OneSampler
from .plan import plan
from .serve import serve
from .simulate import simulate
from .tune import tune
from .view import view

app = typer.Typer(
    help="Decode several tokens per forward, with masked, autoregressive and image models.",
    epilog='Start with: pardec generate tiny-dream -p "Tom has 8 cups. He loses 3. How many cups does Tom have now?"',
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
        print(f"pardec {__version__}")
        raise typer.Exit


@app.callback()
def pardec(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Decode several tokens per forward, with masked, autoregressive and image models."""


app.command("generate", cls=OneSampler)(generate)
app.command("chat", cls=OneSampler)(chat)
app.command("image", cls=OneSampler)(image)
app.command("serve", cls=OneSampler)(serve)
app.command("compare")(compare)
app.command("tune")(tune)
app.command("advise")(advise)
app.command("check", cls=OneSampler)(check)
app.command("align")(align)
app.command("plan", cls=OneSampler)(plan)
app.command("simulate", cls=OneSampler)(simulate)
app.add_typer(bench, name="bench")
app.command("list")(list_)
app.command("show")(show)
app.command("view")(view)
app.command("env")(env)


@cache
def command_line() -> Any:
    """All commands as click runs them; made once, since that takes longer than many a command."""
    return typer.main.get_command(app)
