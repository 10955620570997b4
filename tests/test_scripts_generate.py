"""scripts/generate_text.py and scripts/generate_image.py run with their defaults on every family."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import fresh

ROOT = Path(__file__).resolve().parents[1]


def run(script: str, *arguments: str) -> tuple[int, str]:
    """The exit status and the output; in a fork, where torch is imported already."""
    path = str(ROOT / "scripts" / script)
    code = f"import runpy, sys\nsys.argv = {[path, *arguments]}\nrunpy.run_path({path!r}, run_name='__main__')"
    [done] = fresh.results([{"language": "python", "code": code}], ROOT)
    return done["code"], done["told"]


@pytest.mark.parametrize("model", ["tiny-dream", "tiny-llama", "tiny-nemotron"])
def test_generate_text_defaults(model: str) -> None:
    code, told = run("generate_text.py", "--model", model, "--tokens", "8")
    assert code == 0, told
    assert told.count("forwards") >= 3


def test_scripts_name_the_other_one() -> None:
    code, told = run("generate_text.py", "--model", "tiny-llamagen")
    assert (code, "generate_image.py" in told) == (1, True)
    code, told = run("generate_image.py", "--model", "tiny-llama")
    assert (code, "generate_text.py" in told) == (1, True)


def test_generate_image_uses_the_settings_of_the_checkpoint() -> None:
    code = """
import sys
import pardec
sys.path.insert(0, "scripts")
import generate_image
seen = []
class Stop(pardec.PardecError): pass
def generate(self, **arguments):
    seen.append((arguments, dict(self.imaging.defaults)))
    raise Stop("seen")
pardec.Model.generate = generate
sys.argv = ["generate_image.py", "--sampler", "sequential"]
generate_image.main()
[(arguments, defaults)] = seen
wanted = {name: defaults[name] for name in ("cfg", "top_k", "top_p", "temperature") if defaults.get(name)}
assert wanted and wanted == {name: arguments.get(name) for name in wanted}, (arguments, defaults)
"""
    [done] = fresh.results([{"language": "python", "code": code}], ROOT)
    assert done["code"] == 0, done["told"]
