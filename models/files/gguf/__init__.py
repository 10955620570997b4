"""Models in GGUF files, each converted once into a folder that loads like any other.

Config and tokenizer are read here and not by transformers (`gguf_file=`, 5.23.0), which drops rotary scaling
(`findings/transformers_drops_the_rotary_scaling_of_gguf_files.sh`) and Qwen3's `attention.key_length`, passes over keys
that change what llama.cpp computes, splits text of `smollm` as GPT-2 does, and knows neither Dream nor LLaDA. It also
takes ten times as long: 17 and 28 s for config and tokenizer of a file of 98 MB, 1.9 s here.
"""

from __future__ import annotations

from pathlib import Path

MAGIC = b"GGUF"


def is_gguf(file: Path) -> bool:
    """Whether a file is called .gguf, or begins like one. Raises OSError if it cannot be read."""
    if file.suffix.lower() == ".gguf":
        return True
    with file.open("rb") as handle:
        return handle.read(len(MAGIC)) == MAGIC
