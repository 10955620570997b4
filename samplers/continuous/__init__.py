"""The continuous wing: images whose tokens are vectors, sampled group by group."""
