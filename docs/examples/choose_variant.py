"""Ask every precision for the same text and compare.    python docs/examples/choose_variant.py [HOST:PORT]"""

import sys

from wattserve_client import Client, VariantState

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"

with Client(address) as client:
    for variant in client.server_info().variants:
        if variant.state is not VariantState.READY:
            print(f"{variant.name:16} {variant.state}: {variant.state_reason}")
            continue
        answer = client.predict("a delightful film", variant=variant.name, wait_for_settled_energy=True)
        trust = "verified" if variant.verified else "UNVERIFIED"
        what = f"{variant.operands} products on {variant.device}, {trust}"
        print(f"{variant.name:16} {answer.label:9} {answer.receipt.energy_joules} J  ({what})")
