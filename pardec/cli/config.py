"""Options from a file: `--config FILE`, named as on the command line or in Python; the command line has priority."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pardec.models.errors import SpecError, did_you_mean, one_line
from pardec.models.files.json_text import check_unique, parse

_PYTHON_PLURALS = ("samplers", "caches", "block_lengths")  # names in Python of repeated options


def _yaml(text: str) -> Any:
    import yaml  # comes with transformers

    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if isinstance(node, yaml.MappingNode):
        check_unique(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
    return yaml.safe_load(text)


_READERS: dict[str, Callable[[str], Any]]
_READERS = {".yaml": _yaml, ".yml": _yaml, ".toml": tomllib.loads, ".json": partial(parse, unique=True)}


def read(path: Path) -> dict[str, Any]:
    """The options in a .yaml, .toml or .json file. Raises SpecError if it cannot be read."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise SpecError(
            f"{path} ends in {path.suffix or 'nothing'}, not in {', '.join(_READERS)}",
            hint="rename the config to the format that it is written in",
        )
    try:
        options = reader(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}", hint="name a readable file with options") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} cannot be read: {one_line(error)}", hint="write one option per line") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "yaml":
            raise
        raise SpecError(
            f"{path} is not YAML: {one_line(error)}", hint="write one option per line, such as limit: 50"
        ) from error
    if not isinstance(options, dict):
        raise SpecError(f"{path} is a {type(options).__name__}, not options", hint="write lines such as limit: 50")
    return {str(key): value for key, value in options.items()}


def defaults(options: Mapping[str, Any], parameters: Mapping[str, bool], where: str) -> dict[str, Any]:
    """The options of a file by parameter of the command; `parameters` maps each to whether it may be repeated."""
    known = {name.rstrip("_"): name for name in parameters if name != "config"}
    plurals = {f"{name.removesuffix('s')}s": name for name, many in parameters.items() if many}
    known |= {plural: name for plural, name in plurals.items() if plural in _PYTHON_PLURALS}
    if "no_references" in parameters:
        known["references"] = "no_references"
    values: dict[str, Any] = {}
    for key, value in options.items():
        option = key.replace("-", "_").lstrip("_")
        if option not in known:
            near = did_you_mean(option, known)
            names = sorted(name.replace("_", "-") for name in known)  # with "-" they are not worded as options
            raise SpecError(f"{where}: there is no option {key!r}{near}", hint=f"options: {', '.join(names)}")
        name = known[option]
        if name in values:
            raise SpecError(f"{where}: {key!r} is set twice, under two names", hint="keep one of them")
        if isinstance(value, dict):
            raise SpecError(f"{where}: {key!r} has nested options", hint="write all options on one level")
        if any(map(_is_collection, value if isinstance(value, list) else [value])):
            # YAML references could expand a nested value to text of any length.
            raise SpecError(f"{where}: {key!r} is a nested list", hint="write one value, or a list of values")
        if value is not None:
            try:
                values[name] = _to_text(not value if option == "references" else value, parameters[name])
            except ValueError as error:  # a number with more digits than Python converts
                raise SpecError(f"{where}: {key!r} is invalid: {one_line(error)}", hint="write fewer digits") from error
    return values


def _is_collection(value: Any) -> bool:
    """Whether the value contains other values."""
    return isinstance(value, Collection) and not isinstance(value, str | bytes)


def _to_text(value: Any, repeated: bool) -> Any:
    """A value as on the command line: a list for a repeated option, else text, with commas for a list.

    It is text since an integer option would convert the values true and 1.5 to 1.
    """
    if repeated:
        return [str(one) for one in (value if isinstance(value, list) else [value])]
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _apply_config(context: typer.Context, path: Path | None) -> Path | None:
    if path is not None:
        parameters = {str(one.name): bool(getattr(one, "multiple", False)) for one in context.command.params}
        context.default_map = defaults(read(path), parameters, str(path))
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_apply_config,
        is_eager=True,  # before other options, since it sets their defaults
        help="Read options from a .yaml, .toml or .json file, named as here or in Python.",
        metavar="FILE",
        rich_help_panel="Input and output",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print what would be decoded, with every parameter, and load no weights.",
        rich_help_panel="Input and output",
    ),
]
