"""Generation: causal language models in steps, each a window of its own."""
