"""Shape methods: how a draft model's predictions grow into a draft; one shape per file."""
