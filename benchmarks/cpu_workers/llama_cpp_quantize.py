"""Writes a GGUF file of another type, by llama-cpp-python: `llama_cpp_quantize.py SOURCE.gguf FILE.gguf TYPE`.

TYPE is llama.cpp's number of the file type (`llama_ftype`).
"""

import ctypes
import sys

import llama_cpp


def main() -> None:
    source, file, kind = sys.argv[1:]
    how = llama_cpp.llama_model_quantize_default_params()
    how.ftype, how.nthread, how.allow_requantize = int(kind), 1, True
    if llama_cpp.llama_model_quantize(source.encode(), file.encode(), ctypes.byref(how)):
        sys.exit(f"llama_model_quantize refuses type {kind}")


if __name__ == "__main__":
    main()
