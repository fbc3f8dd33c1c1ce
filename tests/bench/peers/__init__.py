"""The server beside others that people use for the same: LitServe, PyTriton and MLServer, by turns.

`python -m tests.bench.peers` (`make bench-peers`, which first makes each an environment by `get.sh`).
All run on this machine with the same weights, one worker, two threads and batches of up to 32, which wait for
up to 2 ms; one client process sends everybody the same token ids, 32 at a time, and holds each answer against
plain torch's. A peer runs `padded.py`: transformers on padded batches, cut to their longest row. Each round
every server has its turn, every other round in reverse order; who has none is stopped, down to its last
process.
"""
