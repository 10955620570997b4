"""Training of drafters that read a target's states: texts, states, losses, networks, runs."""
