"""Call a server through a peer's own stubs, in a process of its own.

`python -m tests.clients.peer_calls PEER FOLDER ADDRESS` prints, as JSON, what that client sees.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import grpc

from tests.clients.peers import messages, stub

IDS = [2, 4, 6, 3]


def infer_request(pb: Any, model: str, raw: bool) -> Any:
    """Four ids, as elements or as bytes."""
    request = pb.ModelInferRequest(model_name=model, id="mine")
    tensor = request.inputs.add(name="input_ids", datatype="INT64", shape=[1, len(IDS)])
    if raw:
        request.raw_input_contents.append(b"".join(each.to_bytes(8, "little") for each in IDS))
    else:
        tensor.contents.int64_contents.extend(IDS)
    return request


def look(peer: str, calls: Any, pb: Any) -> dict[str, Any]:
    model = calls.ModelMetadata(pb.ModelMetadataRequest(name="demo"))
    raw = calls.ModelInfer(infer_request(pb, "demo@bf16", raw=True))
    typed = calls.ModelInfer(infer_request(pb, "demo@bf16", raw=False))
    seen: dict[str, Any] = {
        "live": calls.ServerLive(pb.ServerLiveRequest()).live,
        "ready": calls.ServerReady(pb.ServerReadyRequest()).ready,
        "server": calls.ServerMetadata(pb.ServerMetadataRequest()).name,
        "inputs": [[each.name, each.datatype, list(each.shape)] for each in model.inputs],
        "typed_and_raw_agree": list(typed.raw_output_contents) == list(raw.raw_output_contents),
        "shape": list(typed.outputs[0].shape),
        "id": typed.id,
        "variant": typed.parameters["variant"].string_param,
        "tokens": typed.parameters["tokens"].int64_param,
    }
    try:
        calls.ModelInfer(infer_request(pb, "other", raw=False))
    except grpc.RpcError as error:
        seen["refused"] = [error.code().name, str(error.details()).partition(";")[0]]

    def is_ready() -> bool:
        return bool(calls.ModelReady(pb.ModelReadyRequest(name="demo@bf16")).ready)

    if peer == "kserve":
        gone = calls.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="demo@bf16"))
        seen["unloaded"] = [gone.model_name, gone.isUnloaded, is_ready()]
        back = calls.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="demo@bf16"))
        seen["loaded"] = [back.model_name, back.isLoaded, is_ready()]
    else:
        index = calls.RepositoryIndex(pb.RepositoryIndexRequest())
        seen["index"] = [[each.name, each.version, each.state] for each in index.models]
        back = calls.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="demo@bf16"))
        seen["loaded"] = None if not back.ListFields() else str(back)
    return seen


def main(peer: str, folder: str, address: str) -> None:
    where = Path(folder)
    pb, made = messages(peer, where)[0], stub(peer, where)
    with grpc.insecure_channel(address) as channel:
        print(json.dumps(look(peer, made(channel), pb)))


if __name__ == "__main__":
    main(*sys.argv[1:])
