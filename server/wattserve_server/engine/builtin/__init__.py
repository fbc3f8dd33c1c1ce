"""The models that need no download: `demo`, whose files are here, and those with random weights."""
