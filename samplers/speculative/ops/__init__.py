"""Rules that several methods of the verify loop share: verification, tree walks, transport, processing."""
