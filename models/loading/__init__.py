"""From a name to what a forward needs: files, config, weights, tokenizer, device and dtype."""
