"""One text, one answer, and what it cost.    python docs/examples/predict.py [HOST:PORT]"""

import sys

from wattserve_client import Client

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"

with Client(address) as client:
    answer = client.predict("a delightful film")
    print(answer.label, answer.classifications[0].scores)
    print(answer.receipt)  # provisional: the meter has not covered the batch yet

    settled = client.receipt(answer.receipt.receipt_id, wait_until_settled=True)
    print(settled)
