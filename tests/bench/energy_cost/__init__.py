"""What the accounting costs: CPU per request, throughput with it on against off, and what it holds in memory.

`python -m tests.bench.energy_cost` drives the shipped code. Figures in microseconds depend on the machine;
ratios and lengths hardly do. Nothing here asserts a time.
"""
