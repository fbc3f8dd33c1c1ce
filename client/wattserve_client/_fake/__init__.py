"""What the fake server of `testing` is made of."""
