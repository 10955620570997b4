"""KV caches: plain, partly stored or partly read, and the readers that attend to them without the kernels."""
