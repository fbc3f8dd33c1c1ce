"""What libraries read from the environment as they are loaded, for whoever runs a model."""

LIBRARIES = {
    # OpenMP's threads spin at their barriers by default; when anything else wants a core (the clients, the
    # event loop), two spinning threads were seen to take 25 times as long as two that sleep. Waking up takes
    # longer than most operators, though: they spin that long (docs/LOG.md).
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "1000",
    # numpy's own threads would spin beside torch's for matrices that one thread does in microseconds.
    "OPENBLAS_NUM_THREADS": "1",
    # For each number of tokens that a product has met, oneDNN and torch's layer around it keep a plan each,
    # of about 0.3 MB: by default 1,024 entries each, half a gigabyte. Fewer hardly cost speed (docs/LOG.md).
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    "LRU_CACHE_CAPACITY": "64",
    "KINETO_LOG_LEVEL": "6",  # else torch's profiler talks on standard error
    "GRPC_VERBOSITY": "NONE",  # what its core logs, its exceptions say as well
}
