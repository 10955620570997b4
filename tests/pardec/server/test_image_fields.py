"""Fields of image requests that the model cannot follow are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

import pardec
from pardec.server.app import create_app

CAPTION: dict[str, Any] = {"prompt": "a blue square", "seed": 1}
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "tiny-llamagen": [
        ({**CAPTION, "label": 9}, "label"),
        ({"label": 9}, "label"),
        ({**CAPTION, "label": 0}, "label"),
        ({**CAPTION, "size": "16x16"}, "size"),
        ({**CAPTION, "cfg_interval": 10**30, "cfg": 2}, "cfg_interval"),
        ({**CAPTION, "size": "96x48"}, "size"),
        ({**CAPTION, "sampler": "threshold"}, "sampler"),
        ({**CAPTION, "n": 2, "temperature": 0}, "n"),
        ({"prompt": ""}, "prompt"),
    ],
    "tiny-var": [
        ({"label": 4, "prompt": "7"}, "prompt"),
        ({"label": 4, "prompt": "a blue square"}, "prompt"),
        ({"prompt": "a blue square"}, "prompt"),
        ({"label": 4, "negative_prompt": "blurred"}, "negative_prompt"),
        ({}, "label"),
        ({"label": 10**6}, "label"),
        ({"label": 4, "n": 2, "temperature": 0}, "n"),
    ],
    "tiny-mar": [({"label": 2, "prompt": "3"}, "prompt"), ({"label": 2, "top_k": 5}, "top_k")],
}


@pytest.mark.parametrize("name", REFUSED)
def test_image_fields_refused(name: str) -> None:
    with TestClient(create_app(pardec.load(name, device="cpu"))) as client:
        for body, param in REFUSED[name]:
            answer = client.post("/v1/images/generations", json=body)
            assert answer.status_code == 400, body
            assert answer.json()["error"]["param"] == param, body


def test_image_top_k_of_0_takes_all_codes() -> None:
    """The checkpoint's own top_k does not come back."""
    model = pardec.load("tiny-var", device="cpu")
    with TestClient(create_app(model, top_k=1)) as client:
        pictures = [
            client.post("/v1/images/generations", json={"label": 4, "seed": 1, **more}).json()["data"][0]["b64_json"]
            for more in ({}, {"top_k": 0}, {"top_k": -1}, {"top_k": 512})
        ]
    assert pictures[0] != pictures[1] == pictures[2] == pictures[3]


def test_image_label_agrees_with_prompt() -> None:
    with TestClient(create_app(pardec.load("tiny-var", device="cpu"))) as client:
        bodies: list[dict[str, Any]] = [{"label": 4}, {"prompt": " 4 "}, {"label": 4, "prompt": "4"}]
        answers = [client.post("/v1/images/generations", json={**body, "seed": 1}) for body in bodies]
        assert [answer.status_code for answer in answers] == [200] * 3
        assert len({answer.json()["data"][0]["b64_json"] for answer in answers}) == 1
