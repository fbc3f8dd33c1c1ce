"""What every test runs under: no network for the hub, no progress bars in the output, no terminal's width."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it for its workers
