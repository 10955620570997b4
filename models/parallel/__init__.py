"""Several threads, processes and devices for one model."""
