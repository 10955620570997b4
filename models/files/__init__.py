"""What a checkpoint's files say: where they lie, configs, weights, tokenizers, adapters and GGUF. Knows no model."""
