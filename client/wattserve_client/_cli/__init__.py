"""What the command `wattserve-client` is made of; `cli` is its door."""
