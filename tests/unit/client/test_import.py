"""The client is light: what importing it pulls in, and the five lines of the README."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import wattserve_client
from tests.fixtures.fake_server.scripted import ScriptedServer

ROOM = Path(wattserve_client.__file__).parent


def printed(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_the_client_imports_nothing_heavy() -> None:
    program = (
        "import sys, wattserve_client\n"
        "heavy = ['torch', 'transformers', 'scipy', 'pandas', 'rich', 'wattserve_server', 'google.rpc']\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert printed(program) == "[]"


def test_only_an_error_with_details_imports_what_reads_them() -> None:
    program = (
        "import sys\n"
        "from wattserve_client.errors import details_in\n"
        "details_in([('other', 'x')])\n"
        "print('google.rpc' in sys.modules)\n"
        "details_in([('grpc-status-details-bin', b'')])\n"
        "print('google.rpc' in sys.modules)\n"
    )
    assert printed(program).split() == ["False", "True"]


def test_importing_the_client_starts_no_thread() -> None:
    assert printed("import threading, wattserve_client; print(threading.active_count())") == "1"


def test_only_the_clients_their_channel_and_their_streams_know_grpc() -> None:
    knows_grpc = set()
    for path in ROOM.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "grpc" for name in names):
                knows_grpc.add(path.name)
    theirs = {"_channel.py", "_stream.py", "aio.py", "client.py"}
    assert knows_grpc - {"server.py"} == theirs  # that one is a server, for tests


def test_every_public_name_exists() -> None:
    assert all(hasattr(wattserve_client, name) for name in wattserve_client.__all__)


def test_five_lines_give_a_label_and_its_joules() -> None:
    with ScriptedServer() as server:
        program = (
            "from wattserve_client import Client\n"
            f"with Client({server.target!r}) as client:\n"
            "    answer = client.predict('a delightful film', variant='bf16', wait_for_settled_energy=True)\n"
            "    print(answer.label, answer.receipt)\n"
        )
        assert printed(program) == "positive 0.0123 J (settled, estimated from CPU time)"
