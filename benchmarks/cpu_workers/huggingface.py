"""The worker of transformers: decodes plainly or with prompt lookup; writes a GGUF file as a folder for the others."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from loop import Values, serve


class HuggingFace:
    def load(self, folder: str, dtype: str, threads: int, stop: list[int]) -> Values:
        torch.set_num_threads(threads)
        kind = getattr(torch, dtype)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=kind).eval()
        self.stop = stop
        return {"transformers": transformers.__version__, "torch": torch.__version__}

    @torch.inference_mode()
    def decode(self, mode: str, ids: list[int], new: int) -> list[int]:
        inputs = torch.tensor([ids])
        more = {"prompt_lookup_num_tokens": 10} if mode == "lookup" else {}
        ends: dict[str, Any] = {"eos_token_id": self.stop, "pad_token_id": self.stop[0]}
        output = self.model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=new, do_sample=False, **ends, **more
        )
        return output[0, len(ids) :].tolist()  # type: ignore[no-any-return]

    def convert(self, file: str, folder: str) -> None:
        """The model of a GGUF file, dequantized to float32, as a folder of safetensors."""
        from pathlib import Path

        source = {"pretrained_model_name_or_path": str(Path(file).parent), "gguf_file": Path(file).name}
        read = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        del read.config.quantization_config  # what was read from GGUF cannot be saved, so a new model takes its tensors
        plain = type(read)(read.config)
        plain.load_state_dict(read.state_dict())
        plain.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    serve(HuggingFace())
