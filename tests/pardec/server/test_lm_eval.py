"""lm-eval's own clients score a local task on the server with the figures of pardec's lm-eval model in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lm_eval.models  # noqa: F401  # registers its clients
import numpy as np
import pytest
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

import pardec
from pardec.interop.lm_eval import PardecLM
from pardec.models.files.catalog import TOKENIZER
from tests.pardec.server.http_server import serving

TASKS = Path(__file__).parents[1] / "lm_eval_task"
pytestmark = pytest.mark.usefixtures("without_versions")


def evaluate(model: Any, task: str, **arguments: Any) -> dict[str, Any]:
    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    result = simple_evaluate(model=model, tasks=[task], task_manager=manager, bootstrap_iters=0, limit=3, **arguments)
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


def likelihoods(model: Any, **arguments: Any) -> list[tuple[float, bool]]:
    """The log-likelihood of each choice of the task, and whether it is the greedy text."""
    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    result = simple_evaluate(
        model=model, tasks=["pardec_local_choose"], task_manager=manager, bootstrap_iters=0, limit=6, log_samples=True,
        **arguments,
    )  # fmt: skip
    samples = result["samples"]["pardec_local_choose"]
    return [(float(value[0]), str(value[1]) == "True") for sample in samples for value in sample["filtered_resps"]]


@pytest.mark.parametrize("tokenized", [True, False])
def test_likelihood(tokenized: bool) -> None:
    """The recipe of docs/guides/server.md, sent as ids and as text: all log-likelihoods are compared."""
    model = pardec.load("tiny-llama", device="cpu")
    alone = likelihoods(PardecLM(model))
    with serving(model) as running:
        arguments = {
            "model": "tiny-llama", "base_url": f"{running.url}/v1/completions", "tokenizer": str(TOKENIZER),
            "add_bos_token": True, "tokenized_requests": tokenized, "num_concurrent": 2, "batch_size": 4,
            "max_retries": 1,
        }  # fmt: skip
        served = likelihoods("local-completions", model_args=arguments)
        assert [greedy for _, greedy in served] == [greedy for _, greedy in alone]
        np.testing.assert_allclose([value for value, _ in served], [value for value, _ in alone], atol=1e-4)
        running.wait_until_idle()
