"""The worker of OpenVINO GenAI: decodes plainly or with prompt lookup; its environment for conversions exports, too."""

from __future__ import annotations

from loop import Values, serve


class OpenVino:
    def load(self, folder: str, threads: int, stop: list[int], lookup: bool = False) -> Values:
        import openvino
        import openvino_genai

        more = {"prompt_lookup": True} if lookup else {}
        self.pipeline = openvino_genai.LLMPipeline(folder, "CPU", INFERENCE_NUM_THREADS=threads, **more)
        self.tensor, self.config = openvino.Tensor, openvino_genai.GenerationConfig
        self.settings = {"do_sample": False, "stop_token_ids": set(stop)}
        if lookup:
            self.settings |= {"num_assistant_tokens": 5, "max_ngram_size": 3}
        return {"openvino-genai": openvino_genai.__version__.partition("-")[0]}

    def decode(self, mode: str, ids: list[int], new: int) -> list[int]:
        import numpy as np

        config = self.config(max_new_tokens=new, **self.settings)
        return list(self.pipeline.generate(self.tensor(np.array([ids], np.int64)), config).tokens[0])

    def convert(self, source: str, folder: str) -> None:
        """A folder of transformers as OpenVINO's representation, with weights in 4 bits."""
        from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

        bits = OVWeightQuantizationConfig(bits=4, sym=False, group_size=64, ratio=1.0)
        OVModelForCausalLM.from_pretrained(source, export=True, quantization_config=bits).save_pretrained(folder)


if __name__ == "__main__":
    serve(OpenVino())
