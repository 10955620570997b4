from __future__ import annotations

import importlib.util
import json

import pytest

import pardec
from pardec.models.kernels.cpu import blocks

pytestmark = pytest.mark.skipif(
    blocks.kernel() is None and importlib.util.find_spec("torchao") is None,
    reason="needs a kernel for blocks, or torchao (the extra quant)",
)
PROMPTS = ["Tom has 18 cups. He loses 4. How many cups does Tom have now?", "Ann has 8 cups. How many has Ann?"]


@pytest.mark.parametrize(("name", "sampler"), [("tiny-dream", "threshold:tau=0.9@dual"), ("tiny-llama", "recycling")])
def test_smaller_weights_decode_and_a_row_is_the_same_alone(name, sampler):
    model = pardec.load(name, device="cpu", quantize="int8")
    result = model.generate(PROMPTS, sampler=sampler, max_new_tokens=24, temperature=0.7, seed=[3, 4])
    alone = [
        model.generate(prompt, sampler=sampler, max_new_tokens=24, temperature=0.7, seed=[seed]).tokens[0]
        for prompt, seed in zip(PROMPTS, (3, 4), strict=True)
    ]
    assert result.tokens == alone
    assert result.environment["quantize"] == model.quantized == "int8"
    assert "quantize" not in pardec.load(name, device="cpu").environment()


def test_the_command_takes_it_and_says_so(cli):
    code, out, err = cli("generate", "tiny-llama", "-p", PROMPTS[0], "-n", 4, "--quantize", "int4", "--json")
    assert code == 0, err
    assert ("int4 in 16 of 17 matrices" if blocks.kernel() is None else "int4 in 18 of 18 matrices") in err
    assert json.loads(out)["environment"]["quantize"] == "int4"
    code, _, err = cli("generate", "tiny-llama", "-p", "a", "--quantize", "int3")
    assert (code, "unknown quantize 'int3'" in err) == (2, True)


def test_a_comparison_records_it_in_its_rows_and_its_commands(tmp_path):
    asked = {"limit": 2, "max_new_tokens": 8, "references": False, "device": "cpu"}
    table = pardec.compare("tiny-llama", "arithmetic", "sequential", out=tmp_path, quantize="int8", **asked)
    assert {row["quantize"] for row in table.run.rows} == {"int8"}
    assert json.loads((tmp_path / "config.json").read_text())["quantize"] == "int8"
    assert "--quantize int8" in (tmp_path / "report.html").read_text()
    plain = pardec.compare("tiny-llama", "arithmetic", "sequential", **asked)
    assert "quantize" not in plain.run.config
    assert {row["quantize"] for row in plain.run.rows} == {None}
