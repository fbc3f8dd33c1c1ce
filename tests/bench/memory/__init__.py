"""What memory a server takes, part by part: when it is ready, under load, and after it.

`python -m tests.bench.memory` serves each choice of variants in a process of its own, and sends it sequences
of mixed lengths in closed loops from another. Sizes depend on the machine; parts and their growth hardly do.
"""
