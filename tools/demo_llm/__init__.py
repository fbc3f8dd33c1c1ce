"""How the `demo-llm` model is made: a text from Debian, a recipe, training. It is not installed."""
