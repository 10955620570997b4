"""The layers of the native stack: attention, MLPs, experts, rotary embedding, and the variants of single families."""
