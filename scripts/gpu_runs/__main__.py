"""The command line of `scripts/gpu_queue`. Python's standard library alone, so that it starts anywhere."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from gpu_runs.run_queue import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
