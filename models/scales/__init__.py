"""Models that predict whole token maps, scale by scale."""
