"""Models whose tokens are vectors of real numbers: backbones and heads of MAR and NextStep-1."""
