"""The server against what it could be: the figures to reach, as ratios of what took turns in one run.

`python -m tests.bench.speed` (`make bench`). Everything that is measured has a process of its own and blocks
while others have their turn; the client is the process that prints, without torch. Each round takes every
turn once, every other round in reverse order, so that a machine that slows down is on everybody's bill.
"""
