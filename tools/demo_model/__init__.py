"""How the `demo` model is made: a grammar of reviews, a recipe, training. It is not installed."""
