"""The worker of vLLM for CPUs, with the engine in its own process."""

from __future__ import annotations

import os
from typing import Any

from loop import Values, serve


class VllmCpu:
    def load(
        self, folder: str, dtype: str, threads: int, stop: list[int], lookup: bool = False, method: str = "",
        draft: str = "", eager: bool = False,
    ) -> Values:  # fmt: skip
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
        os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_NO_USAGE_STATS": "1"}
        import vllm

        more: dict[str, Any] = {}
        if lookup:
            more["speculative_config"] = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3}
        elif method:
            more["speculative_config"] = {"method": method, "num_speculative_tokens": 5}
            more["speculative_config"] |= {"model": draft} if draft else {}
        counted = {"disable_log_stats": False} if more else {}
        more |= {"enforce_eager": True} if eager else {}
        self.model = vllm.LLM(
            folder,
            dtype=dtype,
            max_model_len=4096,
            max_num_seqs=1,
            enable_prefix_caching=False,
            seed=0,
            **more,
            **counted,
        )
        self.sampling, self.stop, self.counted = vllm.SamplingParams, stop, bool(counted)
        return {"vllm": vllm.__version__}

    def decode(self, mode: str, ids: list[int], new: int) -> list[int]:
        wanted = self.sampling(temperature=0, max_tokens=new, stop_token_ids=self.stop, detokenize=False)
        [output] = self.model.generate({"prompt_token_ids": ids}, wanted, use_tqdm=False)
        return list(output.outputs[0].token_ids)

    def accepted(self) -> int:
        name = "vllm:spec_decode_num_accepted_tokens"
        return sum(metric.value for metric in self.model.get_metrics() if metric.name == name) if self.counted else 0


if __name__ == "__main__":
    serve(VllmCpu())
