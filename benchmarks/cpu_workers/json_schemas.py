"""The worker of benchmarks/json_schemas.py: the texts that a library's grammar of a schema admits.

Vocabularies have a token for each byte, so that tokens decide nothing.
"""

from __future__ import annotations

import json
import tempfile
from http.client import HTTPConnection
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from loop import Values, serve

END = 256  # after the bytes


class Llguidance:
    packages = ("llguidance",)

    def __init__(self, texts: list[str]) -> None:
        import llguidance

        self.library, self.tokenizer = llguidance, llguidance.LLTokenizer("byte")

    def admits(self, schema: str, texts: list[str]) -> list[bool]:
        grammar = self.library.LLMatcher.grammar_from_json_schema(schema)
        failed, messages = self.library.LLMatcher.validate_grammar_with_warnings(grammar, self.tokenizer)
        if failed:
            raise ValueError(messages[0])
        return [self._admits(grammar, text.encode()) for text in texts]

    def _admits(self, grammar: str, text: bytes) -> bool:
        matcher = self.library.LLMatcher(self.tokenizer, grammar, log_level=0)
        return bool(matcher.try_consume_tokens(list(text)) == len(text) and matcher.is_accepting())


class Xgrammar:
    packages = ("xgrammar",)

    def __init__(self, texts: list[str]) -> None:
        import xgrammar

        self.library = xgrammar
        tokens = [*(bytes([byte]) for byte in range(256)), b"</s>"]
        self.compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(tokens, stop_token_ids=[END]))

    def admits(self, schema: str, texts: list[str]) -> list[bool]:
        grammar = self.compiler.compile_json_schema(schema)
        return [self._admits(self.library.GrammarMatcher(grammar), text.encode()) for text in texts]

    def _admits(self, matcher: Any, text: bytes) -> bool:
        return all(matcher.accept_token(byte) for byte in text) and bool(matcher.accept_token(END))


class OutlinesCore:
    packages = ("outlines-core",)

    def __init__(self, texts: list[str]) -> None:
        from outlines_core import Vocabulary

        self.vocabulary = Vocabulary(END, {bytes([byte]): [byte] for byte in range(256)})

    def admits(self, schema: str, texts: list[str]) -> list[bool]:
        from outlines_core import Index
        from outlines_core.json_schema import build_regex_from_schema

        index = Index(build_regex_from_schema(schema), self.vocabulary)
        return [self._admits(index, text.encode()) for text in texts]

    def _admits(self, index: Any, text: bytes) -> bool:
        state = index.get_initial_state()
        for byte in text:
            state = index.get_next_state(state, byte)
            if state is None:
                return False
        return bool(index.is_final_state(state))


class LlamaCpp:
    """The server of llama.cpp with a model that writes given texts where its grammar lets it.

    The model is GPT-2 without weights in its layer: logits depend on the position alone, and each text has positions
    of its own. After a prompt that ends where a text begins, greedy decoding writes that text and its end.
    """

    packages = ("xllamacpp", "gguf")
    width = 320

    def __init__(self, texts: list[str]) -> None:
        import xllamacpp

        self.starts, at = dict[str, int](), 1
        for text in dict.fromkeys(texts):
            self.starts[text] = at
            at += len(text.encode()) + 1
        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name) / "texts.gguf"
        self._write(file, at + 64)
        wanted = xllamacpp.CommonParams()
        wanted.model.path = str(file)
        wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = 1
        wanted.n_ctx, wanted.n_parallel, wanted.n_gpu_layers, wanted.verbosity = at + 64, 1, 0, 0
        wanted.warmup = False
        self.server = xllamacpp.Server(wanted)
        self.address = urlsplit(self.server.listening_address)

    def _write(self, file: Path, positions: int) -> None:
        import gguf
        import numpy

        printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = iter(range(0x100, 0x200))  # GPT-2's characters for bytes that are not printed
        tokens = [chr(byte) if byte in printed else chr(next(others)) for byte in range(256)] + ["<|end|>", "<|begin|>"]
        size, width = len(tokens), self.width
        writer = gguf.GGUFWriter(file, "gpt2")
        writer.add_context_length(positions)
        writer.add_embedding_length(width)
        writer.add_block_count(1)
        writer.add_feed_forward_length(width)
        writer.add_head_count(5)
        writer.add_layer_norm_eps(1e-5)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * 2)
        writer.add_token_merges(["a b"])
        writer.add_eos_token_id(END)
        writer.add_bos_token_id(END + 1)
        writer.add_add_bos_token(False)
        written = numpy.zeros((positions, width), numpy.float32)
        for text, start in self.starts.items():
            for at, token in enumerate([*text.encode(), END]):
                written[start - 1 + at, token] = 1
        tensors = {"token_embd.weight": numpy.zeros((size, width)), "position_embd.weight": written}
        tensors |= {"output.weight": numpy.eye(size, width), "output_norm.weight": numpy.ones(width)}
        tensors["output_norm.bias"] = numpy.zeros(width)
        shapes = {"attn_norm": (width,), "ffn_norm": (width,), "attn_qkv": (3 * width, width)}
        shapes |= dict.fromkeys(("attn_output", "ffn_up", "ffn_down"), (width, width))
        for name, shape in shapes.items():
            tensors[f"blk.0.{name}.weight"], tensors[f"blk.0.{name}.bias"] = numpy.zeros(shape), numpy.zeros(shape[0])
        for name, values in tensors.items():
            writer.add_tensor(name, values.astype(numpy.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def admits(self, schema: str, texts: list[str]) -> list[bool]:
        return [self._admits(json.loads(schema), text) for text in texts]

    def _admits(self, schema: Any, text: str) -> bool:
        greedy = {"samplers": ["top_k"], "top_k": 1, "n_predict": len(text.encode()) + 1}
        body = {"prompt": [END + 1] * self.starts[text], "json_schema": schema, "return_tokens": True, **greedy}
        connection = HTTPConnection(str(self.address.hostname), self.address.port)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        if "tokens" not in answer:
            raise ValueError(answer.get("error", {}).get("message", json.dumps(answer)))
        return [token for token in answer["tokens"] if token != END] == list(text.encode()) and (
            answer["stop_type"] == "eos"
        )


LIBRARIES = {"llguidance": Llguidance, "xgrammar": Xgrammar, "outlines-core": OutlinesCore, "llama.cpp": LlamaCpp}


class Grammars:
    def load(self, library: str, texts: list[str]) -> Values:
        self.library = LIBRARIES[library](texts)
        return {name: metadata.version(name) for name in self.library.packages}

    def check(self, schema: str, texts: list[str]) -> list[bool]:
        return list(self.library.admits(schema, texts))


if __name__ == "__main__":
    serve(Grammars())
