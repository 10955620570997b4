"""Fuzzes command lines, by calling the command's function."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

import pardec
from pardec.cli import generate, image, listing, run, view
from tests.fuzz.surfaces import Case, checkpoints

_KINDS: dict[str, Any] = {
    "generate": generate.generate, "image": image.image, "list": listing.list_, "show": listing.show, "view": view.view
}  # fmt: skip
_LEFT_OUT = ("--model", "--debug", "--executor", "--workers", "--tp")


class Commands:
    """Command lines: exit 0, 1 or 2, one line of error, and never a bug."""

    VALUES = ("", "0", "-1", "1", "2", "1e9", "99999999999", "nan", "x", "a b", "\x1b[31m", "none", "../x", "/", ".",
              "é", "true", "{}", "[]", "1,2", "2x2", "99999x99999", "threshold", "preset:fast", "auto", "cpu",
              "cuda:99", "float16")  # fmt: skip

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = checkpoints(folder / "whole")
        self.model = self.made["dream"]
        pardec.load(self.model, device="cpu").generate("a", max_new_tokens=2).save(folder / "run.json")
        (folder / "p.jsonl").write_text('{"prompt": "a"}\n')
        (folder / "noise.jsonl").write_bytes(bytes(range(256)))
        (folder / "a folder").mkdir()
        (folder / "deep.json").write_text("[" * 100_000)
        self.files = [
            str(folder / name)
            for name in ("p.jsonl", "noise.jsonl", "a folder", "deep.json", "run.json", "gone", "p.jsonl/x")
        ]

    def case(self, rng: Random) -> Case:
        name = rng.choice(("generate", "generate", "image", "view", "list", "show"))
        named = ["--" + key.rstrip("_").replace("_", "-") for key in inspect.signature(_KINDS[name]).parameters]
        options = [option for option in named if option not in _LEFT_OUT]

        def value() -> str:
            return rng.choice(self.files if rng.random() < 0.3 else self.VALUES)

        arguments = [name]
        if name in ("generate", "image"):
            arguments += [
                str(self.model if name == "generate" else self.made["llamagen"]) if rng.random() < 0.9 else value()
            ]
            arguments += ["--offline", "--device", "cpu"]
            if rng.random() < 0.8:
                arguments += (
                    ["-p", "a", "-n", "2"] if name == "generate" else ["--class", "1", "-o", str(self.folder / "o.png")]
                )
        elif name in ("view", "show"):
            arguments += [value()]
        for option in rng.sample(options, min(len(options), rng.choice((0, 1, 1, 2, 3)))):
            arguments += [option] if rng.random() < 0.2 else [option, value()]
        return str(arguments), lambda: self.use(arguments)

    def use(self, arguments: list[str]) -> None:
        said, stdin = io.StringIO(), sys.stdin
        here = os.getcwd()
        os.chdir(self.folder / "a folder")
        sys.stdin = io.StringIO("")
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                code = run(arguments)
        finally:
            sys.stdin = stdin
            os.chdir(here)
        assert code in (0, 1, 2), code
        assert "this is a bug" not in said.getvalue(), said.getvalue()
        assert code == 0 or "error: " in said.getvalue(), said.getvalue()
