"""Models whose tokens are vectors of real numbers: MAR and its diffusion head."""
