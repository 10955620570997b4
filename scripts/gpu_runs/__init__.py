"""What `scripts/gpu_queue` runs: one module for each entry of the queue."""
