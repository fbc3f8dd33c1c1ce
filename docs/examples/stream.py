"""Many inputs over one stream, in constant memory.    python docs/examples/stream.py [HOST:PORT]

Answers come as they finish; `index` says whose they are. An input that cannot be served is an error of its
own and does not disturb the others.
"""

import sys

from wattserve_client import Client

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"


def texts():
    for number in range(100):
        yield f"review number {number}: quite good"
    yield ""  # the server refuses an empty text


with Client(address) as client:
    known_uj, sequences = 0, 0
    for answer in client.predict_many(texts(), wait_for_settled_energy=True):
        if answer.error is not None:
            print(f"input {answer.index}: {answer.error.message}")
            continue
        receipt = answer.result().receipt
        if receipt.energy_uj is not None:
            known_uj += receipt.energy_uj
            sequences += len(receipt.lines)
    print(
        f"{sequences} sequences cost {known_uj / 1e6:.3f} J, {known_uj / max(1, sequences) / 1e3:.2f} mJ each"
    )
