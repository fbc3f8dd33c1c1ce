"""NVIDIA's tritonclient, unchanged; what a request cost comes back in the parameters of the reply.

pip install 'tritonclient[grpc]'; python docs/examples/triton_client.py [HOST:PORT] [MODEL]
"""

import os
import sys

import numpy as np
import tritonclient.grpc as triton

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
model = sys.argv[2] if len(sys.argv) > 2 else "demo"

# Where the server asks for an API key; to another machine with ssl=True alone.
key = os.environ.get("WATTSERVE_API_KEY")
headers = {"authorization": f"Bearer {key}"} if key else None


def parameters_of(result):
    found = {}
    for name, value in result.get_response().parameters.items():
        found[name] = getattr(value, value.WhichOneof("parameter_choice"))
    return found


with triton.InferenceServerClient(address) as client:
    assert client.is_model_ready(model, headers=headers)

    text = triton.InferInput("text", [2, 1], "BYTES")
    text.set_data_from_numpy(np.array([["a delightful film"], ["a tedious film"]], dtype=object))
    result = client.infer(model, [text], headers=headers, parameters={"energy": "settled"})
    print(result.as_numpy("logits"))
    told = parameters_of(result)
    print(
        told.get("energy_uj"),
        "uJ,",
        told["energy_state"],
        told["energy_quality"],
        "by",
        told["energy_source"],
    )

    # Token ids, in a chosen precision: by a parameter, or by a name of its own with its own statistics.
    ids = triton.InferInput("input_ids", [1, 4], "INT64")
    ids.set_data_from_numpy(np.array([[2, 7, 9, 3]]))
    result = client.infer(
        f"{model}@bf16",
        [ids],
        headers=headers,
        outputs=[triton.InferRequestedOutput("logits", class_count=2)],
    )
    print(result.as_numpy("logits"), parameters_of(result)["variant"])
    statistics = client.get_inference_statistics(f"{model}@bf16", headers=headers)
    print(statistics.model_stats[0].inference_count, "sequences by bf16")
