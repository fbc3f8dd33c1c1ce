"""The `demo-llm` model: a small causal language model, files of this package."""

from __future__ import annotations

from pathlib import Path

from wattserve_server.engine.builtin.shipped import shipped_folder

SHIPPED = Path(__file__).with_name("demo_llm")
HELDOUT = "heldout.txt"

# What `make demo-llm-model` prints; tools/demo_llm holds the recipe.
SHA256 = {
    "MODEL.md": "18595f69db345f81b7eb4ea082230ed9af7884158387949e3f24cde286ee5fe9",
    "config.json": "492ce190c3b64df41fe3dd84071865879b79b0b770129dc132378b845dbb0c2d",
    "generation_config.json": "e9c42bd8c4e08af12d7090aa6d4ad66489ade8373cd9b7d49f651c60103ce14c",
    "heldout.txt": "b6592ee72223cbf6150b2531acecaf424d11c6d3ac274eb3c896c6e4f1216597",
    "model.safetensors": "09d8bb1830eca3e46c0c83a4748a503bc1d8131761199e2fdeee48563e51569f",
    "tokenizer.json": "a87242482d9af157de1cff128bfac141c0d1aba7b3cc700d713a57c91d603480",
    "tokenizer_config.json": "ab2f6344ed244e34bec6270b4ba888156fc7366cb3b944cad3f1b47332bc460e",
}  # fmt: skip


def demo_llm_folder() -> Path:
    """Raises ConfigError, as `shipped_folder`."""
    return shipped_folder("demo-llm", SHIPPED, SHA256)
