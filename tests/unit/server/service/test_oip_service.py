"""Whether the server and its models are ready, in each state that both can be in."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.clients.oip_world import NAME, ready, unload
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_server.engine.roster import Readiness
from wattserve_server.errors import InvalidRequest, UnavailableError, UnsupportedError
from wattserve_server.service.oip import OipService
from wattserve_server.service.prediction import Host, Serving


def service(of: Host | None) -> tuple[OipService, Serving]:
    serving = Serving(of)
    return OipService(serving, cast(Any, None), cast(Any, None)), serving


async def is_ready(asked: OipService, name: str = "") -> bool:
    if not name:
        return bool((await asked.ServerReady(oip.ServerReadyRequest(), None)).ready)
    return bool((await asked.ModelReady(oip.ModelReadyRequest(name=name), None)).ready)


async def test_a_starting_server_lives_and_is_not_ready() -> None:
    asked, _ = service(None)
    assert (await asked.ServerLive(oip.ServerLiveRequest(), None)).live
    assert not await is_ready(asked)
    assert not await is_ready(asked, "any name")  # there is none to compare it with
    with pytest.raises(UnavailableError):
        await asked.ModelMetadata(oip.ModelMetadataRequest(name=NAME), None)


async def test_a_draining_server_is_not_ready_and_loads_nothing() -> None:
    asked, serving = service(ready())
    assert await is_ready(asked)
    assert await is_ready(asked, NAME)
    serving.draining.set()
    assert (await asked.ServerLive(oip.ServerLiveRequest(), None)).live
    assert not await is_ready(asked)
    assert not await is_ready(asked, NAME)
    with pytest.raises(UnavailableError, match="shutting down"):
        await asked.RepositoryModelLoad(oip.RepositoryModelLoadRequest(model_name=NAME), None)


@pytest.mark.parametrize(
    ("state", "is_lazy", "wanted"),
    [
        (Readiness.UNLOADED, False, False),
        (Readiness.UNLOADED, True, True),
        (Readiness.LOADING, False, False),
        (Readiness.LOADING, True, True),
        (Readiness.CALIBRATING, False, False),
        (Readiness.CALIBRATING, True, True),
        (Readiness.FAILED, False, False),
        (Readiness.FAILED, True, False),
    ],
)
async def test_a_variant_is_ready_when_a_request_of_it_would_be_served(
    state: Readiness, is_lazy: bool, wanted: bool
) -> None:
    server = ready(is_lazy=is_lazy)
    unload(server.engine.roster.named("bf16"), state)
    asked, _ = service(server)
    assert await is_ready(asked, f"{NAME}@bf16") is wanted
    assert await is_ready(asked, NAME)  # its default is another one
    assert await is_ready(asked)


async def test_a_model_is_loaded_as_the_server_was_told_to_and_not_otherwise() -> None:
    asked, _ = service(ready())
    request = oip.RepositoryModelLoadRequest(model_name=NAME)
    request.parameters["config"].string_param = "{}"
    with pytest.raises(InvalidRequest) as caught:
        await asked.RepositoryModelLoad(request, None)
    assert caught.value.field == "parameters[config]"


@pytest.mark.parametrize(
    "method",
    [
        *("SystemSharedMemoryRegister", "SystemSharedMemoryUnregister", "CudaSharedMemoryRegister"),
        *("CudaSharedMemoryUnregister", "TraceSetting", "LogSettings"),
    ],
)
async def test_what_is_not_offered_says_so(method: str) -> None:
    asked, _ = service(ready())
    with pytest.raises(UnsupportedError, match="no shared memory, no traces and no log settings"):
        await getattr(asked, method)(None, None)
