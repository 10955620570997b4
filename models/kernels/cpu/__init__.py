"""Kernels in C for a CPU: an optional backend, compiled where they run."""
