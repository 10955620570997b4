"""Decodes masked diffusion language models block by block: one folder per stage, one file per method."""
