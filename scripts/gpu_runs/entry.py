"""Runs one entry of the queue in this process: `python entry.py MODULE --file F --seconds S [--dry]`."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0:1] = [str(ROOT), str(ROOT / "scripts")]  # in place of this folder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--finish", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if given.dry:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("PARDEC_KERNELS", "reference")  # no kernel in C is compiled for a few tiny forwards
        if given.module == "kernels":
            os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

    from gpu_runs.report import Report

    report = Report(given.file, given.seconds, dry=given.dry, finish=given.finish, inputs=given.inputs)
    import_module(f"gpu_runs.{given.module}").run(report)


if __name__ == "__main__":
    main()
