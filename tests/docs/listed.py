"""Which commands of the documents are not run as they stand, and why. What is in no table here is run.

Patterns are those of `fnmatch`, against the command without its comment. One that matches nothing fails.
"""

from __future__ import annotations

MAY_RUN = {
    "wattserve",
    "loadgen",
    "wattserve-client",
    "python",
    "echo",
    "head",
    "tail",
    "grep",
    "for",
    "sed",
    "cat",
    "curl",
}
"""Programs that the tests may run; a command of any other must be listed below."""

NOT_RUN = {
    "make demo-llm": "takes minutes; deploy/demo_llm.sh is this project's demonstration of language models",
    "make demo": "takes minutes; deploy/demo.sh is this project's demonstration",
    "make test": "it is what runs these tests",
    "pip install *": "needs a package index, and would change the environment of the tests",
    "python3 -m venv *": "the tests have a virtual environment",
    ". .venv/bin/activate": "the tests have a virtual environment",
    "*--device cuda*": "needs a GPU",
    "make test-gpu": "needs a GPU",
    "make bench *": "takes a quarter of an hour",
    "make bench-peers *": "fetches three servers and takes a quarter of an hour",
    "make test-verify": "takes eight minutes",
    "wattserve meter verify *": "takes eight minutes; `make test-verify` runs it",
    "wattserve meter probe --meter nvml*": "needs a GPU",
    "* --model distilbert-base-uncased-finetuned-sst-2-english*": "needs the network, for the hub",
    "perf_analyzer *": "is fetched from the network; `make test-clients` runs it (tests/clients)",
    "aiperf *": "is fetched from the network; `make test-clients` runs it (tests/clients)",
    "guidellm *": "is fetched from the network; `make test-clients` runs it (tests/clients)",
    "*--max-energy-uj *": "refused until the law is known; tests/integration/test_account_book.py tries it",
    "loadgen sweep *50051,127.0.0.1:50052*": "needs two servers; test_loadgen_language_model.py has them",
    "docker *": "needs a container engine; `make image-test` tries the image",
    "serve run *": "needs Ray; `make test-ray` starts it",
    "kubectl *": "needs a cluster; `make test-kubernetes` holds the manifests against their schemas",
    "make image*": "needs a container engine; `make image-test` tries the image",
}

NOT_RUN_PYTHON = {
    (
        "docs/variants.md",
        "predict_images(pixels",
    ): "a line of a program; tests/integration/test_images.py calls it",
}
"""(document, a part of the block) to the reason."""

SHORTENED = {
    "loadgen calibrate --seconds *": "--seconds 0.3",
    "loadgen run *": "--preset look --blocks 1 --seconds 1 --no-calibrate",
    "loadgen sweep *": "--preset look --variants fp32 --concurrency 2 --blocks 1 --seconds 1 --no-calibrate",
    "wattserve bench seed-table *": "--rows 20 --warmup 2 --iterations 20 --variants fp32 --meter none",
    "wattserve meter record *": "--seconds 0.5",
    "wattserve meter probe": "--seconds 0.5",
}
"""Run with these flags behind their own, which they overrule, so that seconds do for minutes."""

UNTIL_CTRL_C = {"wattserve-client energy --watch*"}
"""Run until they show something, then ended as a person would."""

IN_A_BARE_PYTHON = {"python own_stubs.py"}
"""Run by one that has imported nothing: the stubs would be there twice."""
