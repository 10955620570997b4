"""The worker of transformers: decodes plainly or with drafts; writes a GGUF file as a folder for the others."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from loop import Values, serve


class HuggingFace:
    def load(self, folder: str, dtype: str, threads: int, stop: list[int], draft: str = "") -> Values:
        torch.set_num_threads(threads)
        kind = getattr(torch, dtype)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=kind).eval()
        self.stop, self.taken = stop, 0
        self.modes: dict[str, Values] = {"lookup": {"prompt_lookup_num_tokens": 10}}
        if draft:
            drafter = transformers.AutoModelForCausalLM.from_pretrained(draft, dtype=kind).eval()
            half = self.model.config.num_hidden_layers // 2
            self.modes |= {"draft model": {"assistant_model": drafter}, "early exit": {"assistant_early_exit": half}}
            self._count_accepted()
        return {"transformers": transformers.__version__, "torch": torch.__version__}

    @torch.inference_mode()
    def decode(self, mode: str, ids: list[int], new: int) -> list[int]:
        inputs = torch.tensor([ids])
        ends: dict[str, Any] = {"eos_token_id": self.stop, "pad_token_id": self.stop[0]}
        ends |= self.modes.get(mode, {})
        output = self.model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=new, do_sample=False, **ends
        )
        return output[0, len(ids) :].tolist()  # type: ignore[no-any-return]

    def accepted(self) -> int:
        return self.taken

    def _count_accepted(self) -> None:
        """Counts the accepted tokens that transformers reports to each drafter."""
        from transformers.generation import candidate_generator as drafters

        def counted(update: Any) -> Any:
            def told(generator: Any, ids: Any, scores: Any, matches: Any) -> None:
                self.taken += int(matches)
                update(generator, ids, scores, matches)

            return told

        for kind in (drafters.AssistedCandidateGenerator, drafters.PromptLookupCandidateGenerator):
            kind.update_candidate_strategy = counted(kind.update_candidate_strategy)

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
