"""Identifiers say what a thing is in the field's own words: private ones do not come back.

`python tests/test_names.py` prints what is neither clean nor allowed.
"""

from __future__ import annotations

import builtins
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRIVATE = {
    "law": "distribution or probabilities",
    "laws": "distributions",
    "sight": "attention pattern",
    "voice": "draft model",
    "hear": "forward",
    "heard": "fed",
    "chances": "uniforms",
    "asking": "forward, query",
    "painting": "image state",
    "painted": "sampled",
    "unsaid": "uncond",
    "said": "cond, message, parameters",
    "told": "event, message, description",
    "drawn": "sampled or rendered",
    "dressed": "conditioned",
    "joining": "batching",
    "seat": "slot",
    "seats": "slots",
    "standing": "static",
    "pieced": "chunked",
    "sharing": "tensor parallel",
    "dealing": "dispatch",
    "appearance": "code features",
    "picture": "image",
    "pictures": "images",
    "looks": "tests, confirmations",
    "facts": "definitions, environment",
    "hosted": "to_host",
    "unkept": "uncached",
    "scene": "context",
    "scenes": "contexts",
    "place": "slot, column, index, position, device or problem",
    "places": "slots, columns, indices, positions, devices or problems",
    "quiet": "hf_logging",
    "asked": "query, queried or requested",
    "turn": "rotary or round",
    "turns": "rounds",
    "numbers": "parameters, values or indices",
    "cell": "index of the token grid, token",
    "cells": "indices of the token grid, tokens",
    "piece": "chunk or token",
    "pieces": "chunks or tokens",
    "transfer": "share, schedule or copy",
    "admission": "queue, start",
    "saved": "cached, stored",
    "seen": "visible, known",
    "found": "matches, result, error",
    "made": "result, metadata, plan",
    "held": "cache rows, data",
    "kept": "survivors, correction",
    "shown": "text, visible, reported",
    "given": "argument, value",
    "done": "finished, completed",
    "tried": "candidates, rounds",
    "written": "text, changed, explicit",
    "recording": "capture, tracing",
}
# Identifiers that bear such a word as a standard term or a public name, and the files or folders they may stand in.
ALLOWED: dict[str, tuple[str, ...]] = {
    "connection_made": ("pardec/server/run.py",),  # of asyncio's protocols
    # standard terms: cells of tables, scenes of synthetic images, turns of a conversation, given tokens
    "Cell": ("pardec/comparison/report/orders.py",),
    "_cells": ("pardec/comparison/tuning/advice.py",),
    "_heat_cell": ("pardec/comparison/report/tables.py",),
    "cell": ("pardec/bench/report.py", "pardec/cli/", "pardec/comparison/", "pardec/io/prompt_files.py"),
    "cells": ("pardec/bench/report.py", "pardec/cli/listing.py", "pardec/comparison/", "pardec/io/prompt_files.py"),
    "Scene": ("pardec/images/",),
    "scene": ("pardec/images/", "pardec/tasks/classes.py"),
    "scenes": ("pardec/images/", "pardec/tasks/captions.py"),
    "TurnSeed": ("pardec/cli/",),
    "turn": ("pardec/cli/chat.py",),
    "turn_ends": ("models/families/", "models/loading/decoding_config.py"),
    "turns": ("pardec/cli/chat.py",),
    "GIVEN": ("samplers/", "pardec/interop/diffusers/llada2.py"),
    "given": ("samplers/masked/forward.py",),
    "given_host": ("samplers/",),
    # names of Python, huggingface_hub and diffusers
    "numbers": ("models/loading/arguments.py", "pardec/requests/"),
    "LocalEntryNotFoundError": ("models/loading/sources.py",),
    "PackageNotFoundError": ("models/loading/quantize.py", "pardec/environment.py"),
    "RemoteEntryNotFoundError": ("models/loading/sources.py",),
    "RepositoryNotFoundError": ("models/loading/sources.py",),
    "RevisionNotFoundError": ("models/loading/sources.py",),
    "editing_transfer_index": ("pardec/interop/diffusers/",),
    "final_transfer": ("pardec/interop/diffusers/",),
    "transfer_index": ("pardec/interop/diffusers/",),
    # copies between device and host
    "host_transfer": ("samplers/",),
    # hidden transfer, a method
    "HiddenTransfer": ("models/draft_modules/transfer.py", "samplers/speculative/draft/transfer.py"),
    "Transfer": ("samplers/speculative/draft/transfer.py",),
    "transfer": ("samplers/speculative/draft/transfer.py",),
    # public: options, parameters, methods that users write, attributes of results, fields of files
    "PictureError": ("pardec/images/pngs.py",),
    "Quiet": ("pardec/cli/",),
    "quiet": ("pardec/cli/",),
    "asked": ("pardec/comparison/",),
    "done": ("samplers/masked/",),
    "pieces": ("pardec/io/saving.py", "pardec/result_data.py", "pardec/views/"),
    "place": ("pardec/images/scoring.py", "pardec/tasks/captions.py"),
    "seen": ("pardec/comparison/worker.py", "pardec/tasks/"),
    "shown": ("pardec/",),
    "told": ("pardec/cli/tune.py", "pardec/comparison/tuning/__init__.py"),
}


def words(identifier: str) -> set[str]:
    """The words of a snake_case or CamelCase identifier."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


def private_names() -> dict[str, dict[str, str]]:
    """Per file, what is no name of Python, bears a private word where that is not allowed, and what to say instead."""
    result: dict[str, dict[str, str]] = {}
    for file in sorted(path for floor in ("models", "samplers", "pardec") for path in (ROOT / floor).rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        tokens = tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
        names = {token.string for token in tokens if token.type == tokenize.NAME} - set(dir(builtins))
        names = {name for name in names if not path.startswith(ALLOWED.get(name, ("no file",)))}
        terms = {name: PRIVATE[word] for name in sorted(names) for word in sorted(words(name) & set(PRIVATE))}
        if terms:
            result[path] = terms
    return result


def test_no_identifier_bears_a_private_word() -> None:
    assert private_names() == {}


def test_the_list_of_what_is_allowed_only_shrinks() -> None:
    """Every entry allows a private word, and an identifier that stands in each of its files or folders."""
    assert [name for name in ALLOWED if not words(name) & set(PRIVATE)] == []
    for name, paths in ALLOWED.items():
        for path in paths:
            files = sorted((ROOT / path).rglob("*.py")) if path.endswith("/") else [ROOT / path]
            assert any(re.search(rf"\b{name}\b", file.read_text()) for file in files), (name, path)


if __name__ == "__main__":
    for path, terms in private_names().items():
        print(path, terms)
