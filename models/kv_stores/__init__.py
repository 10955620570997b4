"""Compressed keys and values: codecs of chunks of tokens, and a cache that keeps the newest tokens exact."""
