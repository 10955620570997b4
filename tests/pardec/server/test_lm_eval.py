"""lm-eval's own clients score a local task against the server, as its models do in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lm_eval.models  # noqa: F401  # registers its clients
import pytest
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

import pardec
from pardec.interop.lm_eval import PardecLM
from pardec.models.loading.catalog import TOKENIZER
from tests.pardec.server.http_server import serving

TASKS = Path(__file__).parents[1] / "lm_eval_task"


def evaluate(model: Any, task: str, **arguments: Any) -> dict[str, Any]:
    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    result = simple_evaluate(model=model, tasks=[task], task_manager=manager, bootstrap_iters=0, limit=6, **arguments)
    assert result is not None
    scores: dict[str, Any] = result["results"][task]
    return {name: value for name, value in scores.items() if "stderr" not in name}


@pytest.mark.parametrize("name", ["tiny-dream", "tiny-llama"])
def test_generation(name: str) -> None:
    model = pardec.load(name, device="cpu")
    alone = evaluate(PardecLM(model, max_new_tokens=64), "pardec_local_generate")
    shared = {"model": name, "num_concurrent": 4, "max_gen_toks": 64, "max_retries": 1}
    with serving(model) as running:
        tokens = {**shared, "base_url": f"{running.url}/v1/completions", "tokenizer": str(TOKENIZER)}
        text = {**tokens, "tokenized_requests": False}
        assert evaluate("local-completions", "pardec_local_generate", model_args=text) == alone
        ids = {**tokens, "add_bos_token": True}
        assert evaluate("local-completions", "pardec_local_generate", model_args=ids) == alone
        chat = {**shared, "base_url": f"{running.url}/v1/chat/completions"}
        scores = evaluate("local-chat-completions", "pardec_local_generate", model_args=chat, apply_chat_template=True)
        assert scores == alone
        running.wait_until_idle()


def test_likelihood() -> None:
    model = pardec.load("tiny-llama", device="cpu")
    alone = evaluate(PardecLM(model), "pardec_local_choose")
    with serving(model) as running:
        arguments = {
            "model": "tiny-llama",
            "base_url": f"{running.url}/v1/completions",
            "tokenizer": str(TOKENIZER),
            "num_concurrent": 2,
            "batch_size": 4,
            "max_retries": 1,
        }
        assert evaluate("local-completions", "pardec_local_choose", model_args=arguments) == alone
        running.wait_until_idle()
