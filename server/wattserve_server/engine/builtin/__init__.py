"""The models that need no download: `demo`, trained here on first use, and those with random weights."""
