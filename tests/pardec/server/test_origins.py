"""A server without a key refuses requests from pages of other sites, except allowed ones."""

from __future__ import annotations

import json
import re

import pytest
from fastapi.testclient import TestClient

import pardec
from pardec.api import Model
from pardec.models.errors import SpecError
from pardec.server.app import create_app
from tests.pardec.server.http_server import serving

BODY = json.dumps({"prompt": "Tom has 8 cups.", "max_tokens": 2})


@pytest.fixture(scope="module")
def model() -> Model:
    return pardec.load("tiny-llama", device="cpu")


def test_origin_of_another_site_is_refused(model: Model) -> None:
    with serving(model) as running:
        own = running.url.removeprefix("http://")
        cases: list[tuple[dict[str, str], int]] = [
            ({}, 200),
            ({"Origin": running.url}, 200),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": "http://127.0.0.1:1"}, 403),
            ({"Origin": "http://evil.example:80", "Host": "evil.example:80"}, 403),
            ({"Host": "evil.example"}, 403),
            ({"Host": "localhost"}, 200),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Sec-Fetch-Site": "same-origin", "Origin": f"http://{own}"}, 200),
            ({"Origin": "http://[bad"}, 403),
        ]
        for headers, status in cases:
            answer = running.post("/v1/completions", BODY, headers={"Content-Type": "text/plain", **headers})
            assert answer.status_code == status, headers
            assert status == 200 or answer.json()["error"]["code"] == "origin_not_allowed"
            assert "access-control-allow-origin" not in answer.headers


def test_origin_allowed_by_option(model: Model) -> None:
    with TestClient(create_app(model, origins=["https://My.app/"])) as client:
        for origin, status in (("https://my.app", 200), ("https://evil.example", 403)):
            answer = client.post("/v1/completions", content=BODY, headers={"Origin": origin})
            assert answer.status_code == status
            assert (answer.headers.get("access-control-allow-origin") == origin) == (status == 200)
        asked = {"Origin": "https://my.app", "Access-Control-Request-Method": "POST"}
        asked["Access-Control-Request-Headers"] = "authorization,content-type"
        preflight = client.options("/v1/completions", headers=asked)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://my.app"


@pytest.mark.parametrize(
    "origin", ["my.app", "foo", "", "https://", "https://my.app/page", "https://k@my.app", "http://[b"]
)
def test_an_origin_that_no_browser_sends_is_refused(model: Model, origin: str) -> None:
    with pytest.raises(SpecError, match=re.escape(f"{origin!r} is no origin of web pages")):
        create_app(model, origins=["https://my.app", origin])
    create_app(model, origins=["*", "null", "http://localhost:3000", "http://[::1]:80", "chrome-extension://abc"])


def test_origin_with_a_key(model: Model) -> None:
    """No web page can know the key, so a server with a key needs no list of hosts."""
    with TestClient(create_app(model, api_key="k")) as client:
        headers = {"Origin": "https://evil.example"}
        assert client.post("/v1/completions", content=BODY, headers=headers).status_code == 401
        headers["Authorization"] = "Bearer k"
        assert client.post("/v1/completions", content=BODY, headers=headers).status_code == 200
