"""Follow receipts as they settle, and check that the bill adds up to the meter.

python docs/examples/settled_energy.py [HOST:PORT]
"""

import sys

from wattserve_client import Client

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"

with Client(address) as client:
    ids = [client.predict(f"film number {number}").receipt.receipt_id for number in range(5)]
    for receipt in client.watch_receipts(ids, timeout_s=30):
        print(f"{receipt.receipt_id}: first {receipt.provisional_energy_uj} uJ, in the end {receipt}")

    ledger = client.energy_report()
    if ledger.measured_uj is None:
        print(f"no ledger: {ledger.unknown_reason}")
    else:
        others = (ledger.warmup_uj, ledger.idle_uj, ledger.unattributed_uj, ledger.gap_uj, ledger.pending_uj)
        accounts = ledger.active_uj + sum(others)
        print(f"measured {ledger.measured_uj} uJ = {accounts} uJ over all accounts")
        assert ledger.measured_uj == accounts
