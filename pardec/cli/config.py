"""Options from a file: `--config FILE`, with the names that the command line or Python has; what is given wins."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pardec.models.errors import SpecError, did_you_mean, one_line

_LISTED = ("samplers", "caches", "block_lengths")  # what Python calls options that are repeated


def _yaml(text: str) -> Any:
    import yaml  # comes with transformers

    return yaml.safe_load(text)


_READERS: dict[str, Callable[[str], Any]]
_READERS = {".yaml": _yaml, ".yml": _yaml, ".toml": tomllib.loads, ".json": json.loads}


def read(path: Path) -> dict[str, Any]:
    """The options of a file, by its ending. Raises SpecError for what cannot be read."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise SpecError(f"{path} ends in {path.suffix or 'nothing'}", hint=f"a config ends in {', '.join(_READERS)}")
    try:
        held = reader(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}", hint="name a file of options") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} cannot be read: {one_line(error)}", hint="one option a line") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "yaml":
            raise
        raise SpecError(f"{path} is no YAML: {one_line(error)}", hint="one option a line: limit: 50") from error
    if not isinstance(held, dict):
        raise SpecError(f"{path} holds {type(held).__name__} and no options", hint="write lines such as limit: 50")
    return {str(key): value for key, value in held.items()}


def defaults(given: Mapping[str, Any], parameters: Mapping[str, bool], where: str) -> dict[str, Any]:
    """What a file says, by the parameters of a command, of which the mapping says whether they are repeated."""
    known = {name.rstrip("_"): name for name in parameters if name != "config"}
    plurals = {f"{name.removesuffix('s')}s": name for name, many in parameters.items() if many}
    known |= {plural: name for plural, name in plurals.items() if plural in _LISTED}
    if "no_references" in parameters:
        known["references"] = "no_references"
    found: dict[str, Any] = {}
    for key, value in given.items():
        asked = key.replace("-", "_").lstrip("_")
        if asked not in known:
            near = did_you_mean(asked, known)
            raise SpecError(f"{where}: there is no option {key!r}{near}", hint=f"options: {', '.join(sorted(known))}")
        name = known[asked]
        if name in found:
            raise SpecError(f"{where}: {key!r} is there twice, under two names", hint="keep one of them")
        if isinstance(value, dict):
            raise SpecError(f"{where}: {key!r} holds options of its own", hint="write all options on one level")
        if any(map(_holds, value if isinstance(value, list) else [value])):
            # Not only misuse: what a YAML file names again and again would become text of any length.
            raise SpecError(f"{where}: {key!r} holds a list within a list", hint="write one word, or a list of words")
        if value is not None:
            try:
                found[name] = _value(not value if asked == "references" else value, parameters[name])
            except ValueError as error:  # a number of more digits than Python writes
                raise SpecError(f"{where}: {key!r} cannot be: {one_line(error)}", hint="write fewer digits") from error
    return found


def _holds(value: Any) -> bool:
    """Whether that is no word or number but something which holds others."""
    return isinstance(value, Collection) and not isinstance(value, str | bytes)


def _value(value: Any, repeated: bool) -> Any:
    """As the command line would have it: a list for what is repeated, commas for what is one word.

    All of it is text, of which the option reads its number: of the value true or 1.5 it would make the number 1.
    """
    if repeated:
        return [str(one) for one in (value if isinstance(value, list) else [value])]
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _taken(context: typer.Context, path: Path | None) -> Path | None:
    if path is not None:
        parameters = {str(one.name): bool(getattr(one, "multiple", False)) for one in context.command.params}
        context.default_map = defaults(read(path), parameters, str(path))
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_taken,
        is_eager=True,  # what it says stands in for what the command line does not
        help="Options from a .yaml, .toml or .json file, by their names here or in Python.",
        metavar="FILE",
        rich_help_panel="Input and output",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Say what would be decoded, with every parameter, and load no weights.",
        rich_help_panel="Input and output",
    ),
]
