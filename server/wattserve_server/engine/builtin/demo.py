"""The `demo` model: a small classifier, files of this package."""

from __future__ import annotations

from pathlib import Path

from wattserve_server.engine.builtin.shipped import shipped_folder

SHIPPED = Path(__file__).with_name("demo")
HELDOUT = "heldout.jsonl"

# What `make demo-model` prints; tools/demo_model holds the recipe.
SHA256 = {
    "MODEL.md": "a512f2a71c8b4136e803fa9e234a0cf2a84727cab3165a4d2e42bb156bf9d5b9",
    "config.json": "bc2ec9aa62db73a88b59c1879eca50354c54c5ad47988b3142fea8b4ff62e6ef",
    "heldout.jsonl": "2df2031d9a8d8983d485b6e68c05d6c6eff918902a9bbb947b4aea6cb9ef0d74",
    "model.safetensors": "09dbe93daa4db98bd474207311ade493dbb800f0890e34387bd3907f9c0c7ec0",
    "tokenizer.json": "253a3c6ded3b8b4c9f3a25e24b4da6a8811011c49af94bda7f62cd1bb5228f29",
    "tokenizer_config.json": "f0c9d6389f7bbc05ef51605a9c1db499b00e8b053aa6cba23212247f22d41423",
}  # fmt: skip


def demo_folder() -> Path:
    """Raises ConfigError, as `shipped_folder`."""
    return shipped_folder("demo", SHIPPED, SHA256)
