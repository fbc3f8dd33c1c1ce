"""How well requests' joules are attributed, against a simulated device whose truth is known.

`python -m tests.bench.attribution` draws worlds, runs workloads in them, drives the shipped sampler
through the meter port in virtual time, and compares what it charged with what each request did draw.
"""
