"""The worker of llama.cpp as xllamacpp packs it: its server within the process, asked over the loopback interface."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import xllamacpp
from loop import Values, serve


class LlamaCpp:
    def load(self, file: str, threads: int, speculation: str | None = None, draft: str = "") -> Values:
        wanted = xllamacpp.CommonParams()
        wanted.model.path = file
        wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = threads
        wanted.n_ctx, wanted.n_parallel, wanted.n_gpu_layers, wanted.verbosity = 4096, 1, 0, 0
        wanted.cache_prompt, wanted.cache_ram_mib = False, 0  # each prompt is computed
        if speculation:
            kind = f"COMMON_SPECULATIVE_TYPE_{speculation}"
            wanted.speculative.types = [getattr(xllamacpp.common_speculative_type, kind)]
        if draft:
            wanted.speculative.draft.mparams.path = draft
        self.server = xllamacpp.Server(wanted)
        self.address, self.taken = urlsplit(self.server.listening_address), 0
        return {"xllamacpp": xllamacpp.__version__, "features": xllamacpp.get_system_info()}

    def decode(self, mode: str, ids: list[int], new: int) -> list[int]:
        greedy = {"samplers": ["top_k"], "top_k": 1}
        body = {"prompt": ids, "n_predict": new, "return_tokens": True, "cache_prompt": False, **greedy}
        connection = HTTPConnection(str(self.address.hostname), self.address.port)  # idle ones are closed by the server
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        connection.close()
        if "tokens" not in answer:
            raise RuntimeError(json.dumps(answer)[:300])
        self.taken += answer["timings"].get("draft_n_accepted", 0)
        return list(answer["tokens"])

    def accepted(self) -> int:
        return self.taken


if __name__ == "__main__":
    serve(LlamaCpp())
