"""The worker of pardec: autoregressive decoding with any drafter, and masked decoding with any cache."""

from __future__ import annotations

import os
from typing import Any

import torch
from loop import Values, serve

import pardec
from pardec.training.texts import chat_ids


class Pardec:
    def load(self, file: str, threads: int, **arguments: Any) -> Values:
        torch.set_num_threads(threads)
        self.model = pardec.load(file, device="cpu", **arguments)
        self.taken = 0
        said = self.model.network.describe()
        return {"pardec": pardec.__version__, "torch": torch.__version__, "describe": said}

    def decode(self, mode: str, ids: list[int], new: int) -> list[int]:
        result = self.model.generate(input_ids=[ids], sampler=mode, max_new_tokens=new)
        self.taken += len(result.tokens[0]) - result.nfe[0]
        return list(result.tokens[0])

    def accepted(self) -> int:
        return int(self.taken)

    def canvas(self, sampler: str, ids: list[int], new: int, block: int) -> int:
        """Decodes positions of a masked model, past end tokens. Returns the number of forwards."""
        result = self.model.generate(
            input_ids=[ids], sampler=sampler, max_new_tokens=new, block_length=block, stop_ids=[]
        )
        return int(sum(result.nfe))

    def prompts(self, texts: list[str]) -> Values:
        """The ids of prompts, each in the chat template as a user's turn, and of the tokens that end an answer."""
        ends = self.model.language_model.decoding_config.eos_ids
        return {"ids": [chat_ids(self.model, text) for text in texts], "stop": sorted(ends)}


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    serve(Pardec())
