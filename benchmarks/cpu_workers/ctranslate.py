"""The worker of CTranslate2, which decodes plainly."""

from __future__ import annotations

import json
from pathlib import Path

import ctranslate2
from loop import Values, serve


class CTranslate:
    def load(self, folder: str, dtype: str, threads: int, stop: list[int]) -> Values:
        self.model = ctranslate2.Generator(
            folder, device="cpu", compute_type=dtype, inter_threads=1, intra_threads=threads
        )
        self.vocabulary = json.loads((Path(folder) / "vocabulary.json").read_text())
        self.stop = stop
        return {"ctranslate2": ctranslate2.__version__, "compute type": self.model.compute_type}

    def decode(self, mode: str, ids: list[int], new: int) -> list[int]:
        prompt = [self.vocabulary[number] for number in ids]
        [result] = self.model.generate_batch(
            [prompt], max_length=new, sampling_topk=1, include_prompt_in_result=False, end_token=self.stop
        )
        return list(result.sequences_ids[0])

    def convert(self, source: str, folder: str, dtype: str) -> None:
        """A folder of transformers as one of CTranslate2."""
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(source).convert(folder, quantization=dtype, force=True)


if __name__ == "__main__":
    serve(CTranslate())
