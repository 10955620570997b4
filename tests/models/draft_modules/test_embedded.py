"""The draft modules in the package: each loads by its name, and drafting with it gives the tokens of `sequential`."""

from __future__ import annotations

import json

import pytest

import pardec
from pardec.models.errors import ModelError, UnknownModelError
from pardec.models.files.catalog import DRAFTERS, embedded_drafters
from pardec.models.files.sources import local_drafter
from pardec.samplers.spec import parse
from pardec.samplers.spec_values import check

KINDS = ("dflash", "eagle", "hydra", "idlm", "kangaroo", "medusa", "mtp", "prompts")
PROMPTS = [
    "Tom has 18 cups. He loses 4. He finds 12 cups. How many cups does Tom have now?",
    "Hugo has 55 apples. Olga removes 9. Ravi buys 3. How many remain?",
]


def test_every_kind_that_can_be_trained_ships_for_tiny_llama() -> None:
    assert set(embedded_drafters()) == {"smollm2-eagle", *(f"tiny-llama-{kind}" for kind in KINDS)}


def test_the_real_model_has_a_small_drafter_too() -> None:
    folder = DRAFTERS / "smollm2-eagle"
    assert (folder / "model.safetensors").stat().st_size <= 12_000_000
    config = json.loads((folder / "config.json").read_text())
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert config["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize("kind", KINDS)
def test_it_drafts_the_tokens_of_sequential_in_fewer_forwards(kind: str) -> None:
    spec = f"{kind}:name=tiny-llama-{kind}"
    check(parse(spec))
    model = pardec.load("tiny-llama", device="cpu")
    plain, drafted = (model.generate(PROMPTS, sampler=each) for each in ("sequential", spec))
    assert drafted.tokens == plain.tokens
    assert sum(drafted.nfe) < sum(plain.nfe)


def test_a_misspelt_name_is_told_before_a_model_is_loaded() -> None:
    with pytest.raises(UnknownModelError, match="no draft module 'tiny-llama-eagel' .did you mean 'tiny-llama-eagle'"):
        check(parse("eagle:name=tiny-llama-eagel"))
    assert local_drafter("owner/drafter") is None  # only the hub can say


def test_a_module_of_another_target_or_kind_is_refused() -> None:
    model = pardec.load("tiny-llama", device="cpu")
    with pytest.raises(ModelError, match="width 576; those of tiny-llama have 192"):
        model.generate(PROMPTS[:1], sampler="eagle:name=smollm2-eagle")
    with pytest.raises(ModelError, match="of kind medusa, not hydra"):
        model.generate(PROMPTS[:1], sampler="hydra:name=tiny-llama-medusa")
