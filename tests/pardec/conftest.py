"""A small random model in Dream's format with the embedded tokenizer, for all tests that need no right answers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import pardec
from pardec.cli import run
from pardec.models.files.catalog import TOKENIZER

MASK, EOS, PAD = 4, 3, 0


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    made = tmp_path_factory.mktemp("models") / "random-dream"
    shape = {"vocab_size": 361, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = Qwen2Config(
        **shape, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128, tie_word_embeddings=False
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Qwen2ForCausalLM(config)
        for weight in network.parameters():
            torch.nn.init.normal_(weight, std=0.8)
    network.save_pretrained(made)
    published = json.loads((made / "config.json").read_text())
    published |= {"model_type": "Dream", "architectures": ["DreamModel"], "mask_token_id": MASK, "pad_token_id": PAD}
    (made / "config.json").write_text(json.dumps(published | {"eos_token_id": EOS, "bos_token_id": 2}))
    (made / "generation_config.json").unlink(missing_ok=True)
    for file in TOKENIZER.iterdir():
        shutil.copy(file, made)
    return made


@pytest.fixture(scope="session")
def model(folder: Path) -> pardec.Model:
    return pardec.load(folder, device="cpu", dtype="float32")


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs one command in this process; returns exit code, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of a terminal that shows all colours."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def without_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps lm-eval from asking pip and the system for their versions, which takes a second a run."""
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)


@pytest.fixture(scope="module")
def instruct(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The random model with a chat template that adds text to the prompt."""
    copy = shutil.copytree(folder, tmp_path_factory.mktemp("models") / "instruct")
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    template = "{% for message in messages %}Ann asks: {{ message['content'] }}{% endfor %}"
    (copy / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    return copy
