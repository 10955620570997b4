#!/usr/bin/env bash
# httpx and requests: servers send answers as lines of JSON or events, and JSON may hold the line separators of Unicode,
# U+2028, U+2029 and U+0085, as they are. iter_lines of httpx, and that of requests with decode_unicode, end a line at
# each of them, as str.splitlines does: the JSON is cut in two, and a client fails at an answer with such a character,
# which texts from web pages have. iter_lines of requests by bytes, and the openai client, end lines at line breaks
# alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check httpx==0.28.1 requests==2.34.2
"$folder/venv/bin/python" - <<'PY'
import io
import json
import sys

import httpx
import requests

body = json.dumps({"text": "one\u2028two\x85three"}, ensure_ascii=False).encode() + b"\n"


def by_requests(**more):
    response = requests.Response()
    response.raw, response.encoding = io.BytesIO(body), "utf-8"
    return list(response.iter_lines(**more))


seen = {
    "httpx": list(httpx.Response(200, content=body).iter_lines()),
    "requests, decode_unicode": by_requests(decode_unicode=True),
    "requests": by_requests(),
}
print("httpx", httpx.__version__, "requests", requests.__version__)
print("guess: one line, that of the JSON document")
for name, lines in seen.items():
    print(f"{name}: {len(lines)} lines: {lines}")
sys.exit([len(lines) for lines in seen.values()] != [3, 3, 1])
PY
