"""Every code block of the contributors' guides runs, and a contributor's broken file does not end other commands."""

from __future__ import annotations

import ast
import json
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests import fresh
from tests.samplers.test_registry import check_docstring

ROOT = Path(__file__).resolve().parent.parent
GUIDES = ("add-a-sampler", "add-an-argument", "add-a-family")
PAGE = "\n".join((ROOT / "docs" / "guides" / f"{name}.md").read_text() for name in GUIDES)
BLOCKS = [textwrap.dedent(block) for block in re.findall(r"(?ms)^ *```python\n(.*?)^ *```", PAGE)]


def test_every_block_has_a_test() -> None:
    """The first block is tested in test_readme.py."""
    names = ["Surest", "TakesBack", "end_penalty", "MY_QWEN3", "_convert"]
    assert [re.search("|".join(names), block)[0] for block in BLOCKS] == names  # type: ignore[index]


def test_the_sampler_of_the_page_has_the_docstring_of_a_method() -> None:
    check_docstring(ast.get_docstring(ast.parse(BLOCKS[0])) or "", paper="arXiv:2502.09992", exact="relaxed")


def test_a_paper_without_a_title_is_named_with_its_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from pages import papers

    monkeypatch.setattr(papers, "_of_methods", lambda: ({"9999.00001": ["surest"]}, {}))
    with pytest.raises(ValueError, match="surest: the docstring needs the paper's title before its address"):
        papers.papers(ROOT)


def test_the_traits_of_the_page_refuse_a_cache() -> None:
    from pardec.models.errors import SpecError
    from pardec.samplers.registry import resolve
    from pardec.samplers.traits import Party, refuse

    names: dict[str, Any] = {}
    exec(compile(BLOCKS[1], "takes_back.py", "exec"), names)
    stage, cache = names["TakesBack"](), resolve("threshold@spa").cache
    one = Party("takes_back", "revise", stage.provides, stage.requires, stage.conflicts)
    with pytest.raises(SpecError, match="takes_back compares neighbours, and spa does not") as caught:
        refuse([one, Party("spa", "cache", cache.traits)])
    assert caught.value.hint == "use @dual"


def test_the_family_of_the_page_gives_the_logits_of_transformers(tmp_path: Path) -> None:
    script = """
import json, sys, types
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
import pardec.models.families
from pardec.models.load import load

module = types.ModuleType("pardec.models.families.my_qwen3")
module.__package__ = "pardec.models.families"
exec(compile(sys.stdin.read(), "my_qwen3.py", "exec"), module.__dict__)
torch.manual_seed(0)
sizes = dict(vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
theirs = Qwen3ForCausalLM(Qwen3Config(**sizes, num_key_value_heads=2, head_dim=8, tie_word_embeddings=False)).eval()
theirs.save_pretrained(sys.argv[1])
path = sys.argv[1] + "/config.json"
config = json.load(open(path)) | {"model_type": "my_qwen3"}
json.dump(config, open(path, "w"))
model = load(sys.argv[1], device="cpu", dtype="float32")
assert model.family == "my_qwen3", model.family
import pardec
ids = torch.arange(3, 15)[None]
with torch.no_grad():
    expected = theirs(ids).logits
ours = pardec.load(sys.argv[1], device="cpu", dtype="float32").logits(ids)
torch.testing.assert_close(ours.float(), expected.float(), atol=1e-4, rtol=1e-4)
"""
    given = f"import io, sys\nsys.argv, sys.stdin = ['', {str(tmp_path)!r}], io.StringIO({BLOCKS[3]!r})\n"
    [done] = fresh.results([{"language": "python", "code": given + script}], ROOT)
    assert done["code"] == 0, done["told"]


def test_the_conversion_of_the_page_adds_one_to_norms() -> None:
    import torch

    names: dict[str, object] = {}
    exec(compile("from __future__ import annotations\n" + BLOCKS[4], "block", "exec"), names)
    convert = names["_convert"]
    ones = torch.ones(2, dtype=torch.bfloat16)
    assert convert("layers.0.norm.weight", ones, None).tolist() == [2, 2]  # type: ignore[operator]
    assert convert("layers.0.q_proj.weight", ones, None) is ones  # type: ignore[operator]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package's three folders with four broken files; what is compiled stays compiled."""
    root = tmp_path_factory.mktemp("tree")
    for floor in ("pardec", "samplers", "models"):
        shutil.copytree(ROOT / floor, root / floor, ignore=shutil.ignore_patterns("embedded"))
    (root / "models" / "embedded").symlink_to(ROOT / "models" / "embedded")
    select = root / "samplers" / "masked" / "select"
    (root / "models" / "families" / "broken_family.py").write_text("MINE = register(FamilySpec())\n")
    (select / "broken_syntax.py").write_text("def broken(:\n")
    sampler = BLOCKS[0].replace("Surest", "Broken").replace('"surest"', '"broken_import"')
    (select / "broken_import.py").write_text(sampler.replace("import top\n", "import top, nothing_of_this_name\n"))
    (select / "broken_stage.py").write_text(BLOCKS[0].replace('stage="select"', 'stage="selct"'))
    return root


def run(tree: Path, *commands: tuple[str, ...]) -> tuple[list[int], str, str]:
    """Runs commands in a fresh process; returns how each ends, and all of the output."""
    code = f"""
import contextlib, io, json, sys
sys.path.insert(0, {str(tree)!r})
with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
    from pardec.cli import run
    ends = [run(list(command)) for command in {commands!r}]
print(json.dumps([ends, out.getvalue(), err.getvalue()]))
"""
    [done] = fresh.results([{"language": "python", "code": code}], tree)
    assert done["code"] == 0, done["told"]
    ends, out, err = json.loads(done["told"].splitlines()[-1])
    return ends, out, err


def test_the_argument_of_the_page_is_known_everywhere(tree: Path) -> None:
    settings, request = tree / "pardec" / "requests" / "settings.py", tree / "samplers" / "request.py"
    before = {file: file.read_text() for file in (settings, request)}
    text = before[settings].replace(
        "    cfg: float | None\n", "    end_penalty: float | None\n    cfg: float | None\n", 1
    )
    field = textwrap.indent(BLOCKS[2], "    ") + "    cfg: float | None = argument("
    settings.write_text(text.replace("    cfg: float | None = argument(", field, 1))
    line = "    cfg: float | None = None\n"
    request.write_text(before[request].replace(line, "    end_penalty: float | None = None\n" + line, 1))
    script = """
import pardec
from pardec.interop.lm_eval.requests import generation
from pardec.server.schemas import ChatBody, ImageBody
model, drawer = pardec.load("tiny-llama", device="cpu"), pardec.load("tiny-mar", device="cpu")
call = model.prepare("Tom has 3 cups.", end_penalty=2)
assert call.request.end_penalty == call.settings["end_penalty"] == 2.0
assert "end_penalty" not in model.prepare("Tom has 3 cups.", end_penalty=0).settings
assert call.request.kind != model.prepare("Tom has 3 cups.").request.kind
assert "end_penalty: number subtracted from the logits of end tokens." in pardec.Model.generate.__doc__
assert generation({"end_penalty": 2}, {}).arguments["end_penalty"] == 2
assert "end_penalty" in ChatBody.model_fields and "end_penalty" not in ImageBody.model_fields
for one, arguments, says in (
    (model, {"prompt": "a", "end_penalty": -1}, "end_penalty must be from 0 to 1e4, got -1"),
    (drawer, {"label": 1, "end_penalty": 2}, "end_penalty is for text and tiny-mar draws images"),
):
    try:
        one.generate(**arguments)
    except pardec.SpecError as error:
        assert says in str(error), error
    else:
        raise AssertionError(says)
"""
    code = f"import sys; sys.path.insert(0, {str(tree)!r})\n{script}"
    [done] = fresh.results([{"language": "python", "code": code}], tree)
    ends, _, told = run(tree, ("generate", "tiny-llama", "-p", "a", "--end-penalty", "-1"))
    for file, was in before.items():
        file.write_text(was)
    assert done["code"] == 0, done["told"]
    assert (ends, "--end-penalty must be from 0 to 1e4" in told) == ([2], True), told


def test_broken_files_are_named_and_end_no_command(tree: Path) -> None:
    prompt = ("-p", "Tom has 8 cups. He loses 3. How many cups does Tom have now?", "--device", "cpu", "--json")
    ends, told, errors = run(tree, ("generate", "tiny-dream", *prompt), ("list", "samplers"), ("list", "models"))
    assert ends == [0, 0, 0], errors
    assert "answer 5" in json.JSONDecoder().raw_decode(told)[0]["rows"][0]["text"]
    for name in ("broken_family.py", "broken_syntax.py", "broken_stage.py"):
        assert sum(name in line for line in errors.splitlines()) == 1, errors
    assert "NameError" in errors
    assert "unknown stage 'selct'" in errors


def test_a_broken_sampler_is_named_where_it_is_asked_for(tree: Path) -> None:
    samplers = ("broken_import", "broken_syntax")
    asked = [("generate", "tiny-dream", "-p", "a", "-s", name, "--device", "cpu") for name in samplers]
    ends, _, errors = run(tree, *asked)
    assert ends == [2, 2]
    for said in ("'broken_import' cannot be imported: ImportError", "unknown sampler 'broken_syntax'"):
        assert said in errors
    assert "broken_syntax.py cannot be read" in errors
