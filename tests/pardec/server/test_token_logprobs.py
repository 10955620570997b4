"""Log-probabilities in answers: each token's offset in the text, its bytes, and their number."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import pardec
from pardec.server.app import create_app
from pardec.server.token_names import Offsets, TokenNames


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return tokenizer


@pytest.fixture(scope="module")
def bytes_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Any]]:
    root: Path = tmp_path_factory.mktemp("bytes")
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(root)
    tokenizer.save_pretrained(root)
    with TestClient(create_app(pardec.load(root, device="cpu"))) as client:
        yield client, tokenizer


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-dream"])
def client(request: pytest.FixtureRequest) -> Iterator[TestClient]:
    with TestClient(create_app(pardec.load(request.param, device="cpu"))) as client:
        yield client


ANSWER = "é 日 😊!"


def test_text_offset_of_parts_of_characters(bytes_client: tuple[TestClient, Any]) -> None:
    client, tokenizer = bytes_client
    ids = tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    starts = [at for at, char in enumerate(ANSWER) for _ in char.encode()]
    body = {"prompt": "xé", "max_tokens": len(ids), "logprobs": 2, "allowed": [[i] for i in ids]}
    for echo, before in ((False, ""), (True, "xé")):
        choice = client.post("/v1/completions", json={**body, "echo": echo}).json()["choices"][0]
        assert choice["text"] == before + ANSWER
        assert choice["logprobs"]["text_offset"][-len(ids) :] == [len(before) + start for start in starts]
        assert len({"\ufffd"} & set(choice["logprobs"]["tokens"])) == 0
    lines = client.post("/v1/completions", json={**body, "stream": True}).text.split("\n\n")
    parts = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    offsets = [each for part in parts for each in json.loads(part)["choices"][0]["logprobs"]["text_offset"]]
    assert offsets == starts


def test_token_bytes_join_to_the_answer(bytes_client: tuple[TestClient, Any]) -> None:
    client, tokenizer = bytes_client
    ids = [*tokenizer(ANSWER, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": len(ids),
        "logprobs": True,
        "top_logprobs": 3,
        "allowed": [[i] for i in ids],
    }
    reply = client.post("/v1/chat/completions", json=body).json()
    entries = reply["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"] or []) == ANSWER.encode()
    assert all(byte != 0xEF for entry in entries for top in entry["top_logprobs"] for byte in top["bytes"] or [])
    assert entries[-1]["bytes"] is None
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert len(entries) == reply["usage"]["completion_tokens"] == len(ids)


def test_top_logprobs_keep_colliding_tokens(bytes_client: tuple[TestClient, Any]) -> None:
    client, _ = bytes_client
    body = {"prompt": "x", "max_tokens": 6, "logprobs": 20}
    entries = client.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    assert all(len(top) in (20, 21) for top in entries["top_logprobs"])
    for token, own, top in zip(entries["tokens"], entries["token_logprobs"], entries["top_logprobs"], strict=True):
        assert top[token] == own


def test_names_of_two_tokens_with_one_text() -> None:
    names = TokenNames(pardec.load("tiny-llama", device="cpu").tokenizer, 361)
    names._bytes[50], names._bytes[60] = b"a", b"a"
    assert names.names([60, 50]) == {60: "a", 50: "token_id:50"}


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.covers(1)
def test_text_offset_indexes_text(client: TestClient, echo: bool) -> None:
    server: Any = client.app.state.server  # type: ignore[attr-defined]
    special = set(server.model.tokenizer.all_special_tokens)
    for prompt in ("Tom has 18 cups.", "  Tom  has\n\n8  cups. ", "Ünä 日本 😊 cups", "<bos>Tom"):
        body = {"prompt": prompt, "max_tokens": 24, "echo": echo}
        if not echo or server.model.family == "ar":
            body["logprobs"] = 1
        reply = client.post("/v1/completions", json=body).json()
        choice = reply["choices"][0]
        text, entries = choice["text"], choice["logprobs"]
        if entries is None:
            continue
        count = reply["usage"]["completion_tokens"] + (reply["usage"]["prompt_tokens"] if echo else 0)
        assert len(entries["tokens"]) == count
        for token, offset in zip(entries["tokens"], entries["text_offset"], strict=True):
            if token in special:
                continue
            if token.startswith("bytes:"):
                first = bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
                assert first in text[offset].encode()
            else:
                assert text[offset:].startswith(token) or (offset == 0 and text.startswith(token.lstrip())), token


def test_offsets_agree_with_the_whole_text() -> None:
    """Random tokens, including special ones: a token begins where the text of the earlier tokens ends."""
    tokenizer = pardec.load("tiny-llama", device="cpu").tokenizer
    names, order = TokenNames(tokenizer, 361), random.Random(3)
    letters = [token for token in range(361) if (names.bytes_of(token) or b"\xff").isascii()]
    for _ in range(50):
        ids = [order.choice([*letters, *names.special]) for _ in range(20)]
        offsets = Offsets(names)
        for at, token in enumerate(ids):
            assert offsets.next(token) == len(tokenizer.decode(ids[:at], skip_special_tokens=True))


def test_offsets_end_with_a_text_that_a_stop_string_cuts(bytes_client: tuple[TestClient, Any]) -> None:
    client, tokenizer = bytes_client
    ids = tokenizer("abcdef", add_special_tokens=False)["input_ids"]
    body = {"prompt": "x", "max_tokens": 6, "logprobs": 1, "allowed": [[i] for i in ids], "stop": "cd"}
    choice = client.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["text"] == "ab"
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 2]
