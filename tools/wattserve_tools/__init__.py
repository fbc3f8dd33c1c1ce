"""The command `wattserve`, and inspection of a model without a server.

What libraries read as they are loaded is set here, because the command's own imports load some of them.
"""

import os

_LIBRARIES = {
    # OpenMP's threads spin at their barriers by default; when anything else wants a core (the clients, the
    # event loop), two spinning threads were seen to take 25 times as long as two that sleep. Waking up takes
    # longer than most operators, though: they spin that long (docs/LOG.md).
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "1000",
    # numpy's own threads would spin beside torch's for matrices that one thread does in microseconds.
    "OPENBLAS_NUM_THREADS": "1",
    "KINETO_LOG_LEVEL": "6",  # else torch's profiler talks on standard error
    "GRPC_VERBOSITY": "NONE",  # what its core logs, its exceptions say as well
}

for _name, _value in _LIBRARIES.items():
    os.environ.setdefault(_name, _value)
