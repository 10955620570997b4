"""An HTTP server with the interface of OpenAI's API, for every model, sampler and cache."""
