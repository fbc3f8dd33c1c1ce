"""Hostile and broken calls to a running server: every method, thousands of inputs, always the same ones."""
