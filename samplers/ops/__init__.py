"""Tensor functions that policies share: the definition on any device, and a fast path where there is one."""
