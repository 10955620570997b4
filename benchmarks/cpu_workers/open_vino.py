"""The worker of OpenVINO GenAI: decodes plainly or with drafts, and converts GGUF files and checkpoints."""

from __future__ import annotations

import os

from loop import Values, serve


class OpenVino:
    def load(
        self, folder: str, threads: int, stop: list[int], lookup: bool = False, draft: str = "", **properties: str | int
    ) -> Values:
        import openvino
        import openvino_genai

        properties = {"INFERENCE_NUM_THREADS": threads, **properties}
        more = {"prompt_lookup": True} if lookup else {}
        if draft:
            more = {"draft_model": openvino_genai.draft_model(draft, "CPU", **properties)}
        self.pipeline = openvino_genai.LLMPipeline(folder, "CPU", **properties, **more)
        self.tensor, self.config = openvino.Tensor, openvino_genai.GenerationConfig
        self.settings = {"do_sample": False, "stop_token_ids": set(stop)}
        if lookup:
            self.settings |= {"num_assistant_tokens": 5, "max_ngram_size": 3}
        if draft:
            self.settings["num_assistant_tokens"] = 5
        self.taken = 0
        return {"openvino-genai": openvino_genai.__version__.partition("-")[0]}

    def decode(self, mode: str, ids: list[int], new: int) -> list[int]:
        import numpy as np

        config = self.config(max_new_tokens=new, **self.settings)
        result = self.pipeline.generate(self.tensor(np.array([ids], np.int64)), config)
        if result.extended_perf_metrics is not None:
            self.taken += result.extended_perf_metrics.get_num_accepted_tokens()
        else:  # tokens beyond one for each forward
            self.taken += len(result.tokens[0]) - len(result.perf_metrics.raw_metrics.m_batch_sizes)
        return list(result.tokens[0])

    def accepted(self) -> int:
        return self.taken

    def convert(self, source: str, folder: str) -> None:
        """A GGUF file as OpenVINO's representation, or a folder of transformers with weights in 4 bits."""
        if source.endswith(".gguf"):
            import openvino_genai

            os.mkdir(folder)
            os.symlink(source, f"{folder}/model.gguf")
            openvino_genai.LLMPipeline(f"{folder}/model.gguf", "CPU", enable_save_ov_model=True)
            return
        from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

        bits = OVWeightQuantizationConfig(bits=4, sym=False, group_size=64, ratio=1.0)
        OVModelForCausalLM.from_pretrained(source, export=True, quantization_config=bits).save_pretrained(folder)


if __name__ == "__main__":
    serve(OpenVino())
