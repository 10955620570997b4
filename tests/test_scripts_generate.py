"""scripts/generate_text.py and scripts/generate_image.py run with their defaults on every family."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / script), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("model", ["tiny-dream", "tiny-llama", "tiny-nemotron"])
def test_generate_text_defaults(model: str) -> None:
    done = run("generate_text.py", "--model", model, "--tokens", "8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("forwards") >= 3


def test_scripts_name_the_other_one() -> None:
    done = run("generate_text.py", "--model", "tiny-llamagen")
    assert (done.returncode, "generate_image.py" in done.stderr) == (1, True)
    done = run("generate_image.py", "--model", "tiny-llama")
    assert (done.returncode, "generate_text.py" in done.stderr) == (1, True)


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
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
