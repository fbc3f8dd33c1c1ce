"""Several requests at once with asyncio.    python docs/examples/predict_async.py [HOST:PORT]"""

import asyncio
import sys

from wattserve_client import AsyncClient, Overloaded

TEXTS = ["a delightful film", "a tedious, joyless film", "not bad at all"]


async def main(address: str) -> None:
    async with AsyncClient(address, timeout_s=10) as client:
        try:
            answers = await asyncio.gather(*(client.predict(text) for text in TEXTS))
        except Overloaded as error:  # after gRPC's own retries, which honour the server's push-back
            print(f"come back in {error.retry_after_s} s: {error.message}")
            return
        for text, answer in zip(TEXTS, answers, strict=True):
            print(f"{answer.label:10} {text!r}: {answer.receipt}")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"))
