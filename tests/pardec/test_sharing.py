from __future__ import annotations

from dataclasses import replace

import pytest

import pardec
from pardec.models.errors import SpecError

ASKED = ("generate", "tiny-llama", "-p", "Ann has 8 cups. How many has Ann?", "-n", 8, "--device", "cpu")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("-o", "rows.jsonl"), "would resume an earlier one"),
        (("--executor", "ray", "-o", "rows.jsonl"), "the ray executor gives each a copy"),
        (("--quantize", "int8"), "tp and --quantize int8 cannot be combined"),
        ((), "needs torchrun"),
    ],
)
def test_what_cannot_be_shared_is_refused(cli, monkeypatch, more, message):
    monkeypatch.delenv("RANK", raising=False)
    code, out, err = cli(*ASKED, "--tp", *more)
    assert (code in (1, 2), out, message in err) == (True, "", True), err


def test_what_decides_by_the_clock_is_refused():
    whole = pardec.load("tiny-llama", device="cpu").language_model
    shared = pardec.Model(replace(whole, processes=2))
    assert shared.environment()["processes"] == "2"
    with pytest.raises(SpecError, match="goodput decides by the clock"):
        shared.generate("Ann has 8 cups.", sampler="model:name=tiny-llama-draft+goodput")
