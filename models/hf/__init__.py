"""Runs models of transformers through pardec's forward contract."""
