"""Length methods: control how many tokens to draft; one controller per file."""
