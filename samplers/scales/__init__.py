"""Sampling for models that predict token maps: images, sampled scale by scale, coarse to fine."""
