"""The scale wing: images whose token maps are sampled scale by scale, coarse to fine."""
