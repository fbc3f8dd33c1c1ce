"""Offline looks at a model, without a server: what its variants do to answers, memory and joules."""
