"""Benches of the front for OpenAI's clients."""
