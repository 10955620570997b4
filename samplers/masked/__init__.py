"""The masked wing: diffusion language models, filled in block by block; one folder a stage, one method a file."""
