"""The speculative wing: autoregressive models, several tokens verified in one forward."""
