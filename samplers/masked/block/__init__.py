"""Block methods: choose the open positions that may be committed, without a fixed grid; one method per file."""
