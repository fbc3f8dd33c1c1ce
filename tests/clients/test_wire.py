"""Our Open Inference Protocol messages are those of its real clients, and import beside them.

A message is its field numbers and types: one wrong number is a client that reads nonsense, so every field of
every peer is compared, by what the generated stubs themselves declare. Known differences are listed below.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.clients.peers import Described

ROOT = Path(__file__).parents[2]
PEERS = ["tritonclient", "mlserver", "kserve"]
# What the others have and Triton, whose messages ours are, has not, or has otherwise.
MLSERVER_ADDS = {
    "ModelMetadataResponse.6",  # parameters: content types for its own codecs
    "ModelMetadataResponse.ParametersEntry",
    "ModelMetadataResponse.TensorMetadata.4",
    "ModelMetadataResponse.TensorMetadata.ParametersEntry",
}
MLSERVER_DIFFERS = {
    "service GRPCInferenceService.ModelStreamInfer"
}  # its replies have no envelope for an error
KSERVES_OWN = {  # its replies say what was loaded; Triton's are empty, and pass over them
    "RepositoryModelLoadResponse.1",
    "RepositoryModelLoadResponse.2",
    "RepositoryModelUnloadResponse.1",
    "RepositoryModelUnloadResponse.2",
}
KSERVE_DIFFERS = {"RepositoryModelLoadRequest.1", "RepositoryModelUnloadRequest.1"}  # model_name is 1, not 2


class Comparison(NamedTuple):
    """Keys (a message, or MESSAGE.NUMBER) that one side alone has, or that both have with other contents."""

    missing: set[str]
    invented: set[str]
    different: set[str]


def compare(ours: Described, theirs: Described) -> Comparison:
    """Compare what is of the same name, field by field."""
    missing, invented, different = set(theirs) - set(ours), set(ours) - set(theirs), set()
    for name in set(ours) & set(theirs):
        mine, others = _plain(ours[name], ours[name]), _plain(theirs[name], ours[name])
        missing |= {f"{name}.{key}" for key in set(others) - set(mine)}
        invented |= {f"{name}.{key}" for key in set(mine) - set(others)}
        different |= {f"{name}.{key}" for key in set(mine) & set(others) if mine[key] != others[key]}
    return Comparison(missing, invented, different)


def _plain(fields: dict[str, object], ours: dict[str, object]) -> dict[str, object]:
    """Without the oneofs of which we have one member at most: the wire is the same with and without them."""
    groups: dict[object, int] = {}
    for number in set(ours) & set(fields):
        field = fields[number]
        if isinstance(field, list) and len(field) == 6:
            groups[field[4]] = groups.get(field[4], 0) + 1
    return {
        number: [*field[:4], field[4] if groups.get(field[4], 0) > 1 else "", field[5]]
        if isinstance(field, list) and len(field) == 6
        else field
        for number, field in fields.items()
    }


def described(peer: str, order: str = "ours-first") -> tuple[Described, list[Described]]:
    """Ours and a peer's, from a process that imported both: two peers' stubs cannot share one."""
    folder = ""
    if peer != "tritonclient":
        folder = os.environ.get("WATTSERVE_PEERS", "")
        if not folder:
            pytest.skip(f"WATTSERVE_PEERS names no folder with {peer} (tests/clients/get_peers.sh fills one)")
        folder = str(Path(folder).resolve())
    command = [sys.executable, "-m", "tests.clients.peers", peer, folder, order]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    both = json.loads(ended.stdout)
    return both["ours"], both["theirs"]


@pytest.mark.parametrize("order", ["ours-first", "peer-first"])
@pytest.mark.parametrize("peer", PEERS)
def test_ours_import_beside_a_peers(peer: str, order: str) -> None:
    ours, theirs = described(peer, order)
    assert "ModelInferRequest" in ours
    assert "ModelInferRequest" in theirs[0]


def test_ours_are_tritons() -> None:
    """All of the service but two things nothing here fills; of a model's configuration, what is filled."""
    ours, (service, config) = described("tritonclient")
    found = compare(ours, service | config)
    assert found.invented == KSERVES_OWN
    assert found.different == set()
    assert compare(ours, service).missing == {
        "InferResponseStatistics",
        "ModelStatistics.9",
        "ModelStatistics.ResponseStatsEntry",
    }
    assert len(set(ours) & set(config)) >= 8  # the comparison was not of nothing


def test_ours_take_in_mlservers() -> None:
    ours, (theirs,) = described("mlserver")
    found = compare(ours, theirs)
    assert found.missing == MLSERVER_ADDS
    assert found.different == MLSERVER_DIFFERS


def test_ours_take_in_kserves() -> None:
    ours, (theirs,) = described("kserve")
    found = compare(ours, theirs)
    assert found.missing == set()
    assert not KSERVES_OWN & found.different
    assert found.different == KSERVE_DIFFERS


def test_a_difference_is_found() -> None:
    """Each kind of mistake that a hand-written .proto can have."""
    field = ["name", "TYPE_STRING", "single", "", "", ""]
    theirs: Described = {"M": {"1": field}, "E": {"0": "A"}}
    assert compare({"M": {"1": field}, "E": {"0": "A"}}, theirs) == (set(), set(), set())
    assert compare({"M": {"2": field}, "E": {"0": "A"}}, theirs) == ({"M.1"}, {"M.2"}, set())
    assert compare({"M": {"1": field}, "E": {"0": "B"}}, theirs).different == {"E.0"}
    for place, other in enumerate(["other", "TYPE_BYTES", "repeated", "K", "", "presence"]):
        wrong = [*field[:place], other, *field[place + 1 :]]
        assert compare({"M": {"1": wrong}, "E": {"0": "A"}}, theirs).different == (
            {"M.1"} if other else set()
        )


def test_a_oneof_with_two_members_counts() -> None:
    field, inside = (
        ["name", "TYPE_STRING", "single", "", "", ""],
        ["name", "TYPE_STRING", "single", "", "one", ""],
    )
    assert compare({"M": {"1": field}}, {"M": {"1": inside, "2": inside}}).different == set()
    both: Described = {"M": {"1": inside, "2": inside}}
    assert compare({"M": {"1": field, "2": field}}, both).different == {"M.1", "M.2"}
