"""The entries that `scripts/gpu_queue` runs, one module each."""
