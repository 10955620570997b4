"""Sampling for models whose tokens are vectors: images, sampled group by group."""
