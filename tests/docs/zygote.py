"""A process that has imported torch once and forks a child for each command that a document shows.

`python -m tests.docs.zygote SOCKET`. A command comes as argument list, folder, environment and the caller's
three standard streams; what goes back is the child's process id, then its exit code. The child runs the
`main` of the real program, so that fifty commands cost fifty runs and one import. Before a fork there is no
tensor and no channel, and no thread but those that wait for earlier children.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path

SHIM = """\
#!{python} -IS
import json, os, signal, socket, sys
caller = socket.socket(socket.AF_UNIX)
caller.connect({socket!r})
order = json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(caller, [len(order).to_bytes(8, "big")], [0, 1, 2])
caller.sendall(order)
answer = caller.makefile("r")
child = int(answer.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(child, number))
sys.exit(int(answer.readline() or 99))
"""
_PR_SET_PDEATHSIG = 1  # of Linux
PROGRAMS = ("wattserve", "loadgen", "wattserve-client", "python")


def write_shims(folder: Path, address: Path) -> None:
    """One executable for each of PROGRAMS, to be put before everything else on the PATH."""
    folder.mkdir()
    for name in PROGRAMS:
        path = folder / name
        path.write_text(SHIM.format(python=sys.executable, socket=str(address), name=name))
        path.chmod(0o755)


def serve(address: str) -> None:
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6"}
    os.environ |= {"GRPC_VERBOSITY": "NONE", "TOKENIZERS_PARALLELISM": "false"}
    _import_everything()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    print("ready", flush=True)
    while True:
        caller, _ = listener.accept()
        length, streams, _, _ = socket.recv_fds(caller, 8, 3)
        name, arguments, folder, environment = json.loads(_exactly(caller, int.from_bytes(length, "big")))
        child = os.fork()
        if child == 0:
            listener.close()
            _become(name, arguments, folder, environment, streams)
        for stream in streams:
            os.close(stream)
        threading.Thread(target=_tell, args=(caller, child), daemon=True).start()


def _import_everything() -> None:
    import pyarrow.parquet  # noqa: F401
    import torch._dynamo  # noqa: F401  the profiler's and transformers' late import
    from transformers import DistilBertForSequenceClassification, PreTrainedTokenizerFast  # noqa: F401

    import wattserve_client.cli  # noqa: F401
    import wattserve_loadgen.report.page
    import wattserve_loadgen.sweeping.sweep  # noqa: F401
    import wattserve_tools.inspect.cli  # noqa: F401


def _become(
    name: str, arguments: list[str], folder: str, environment: dict[str, str], streams: list[int]
) -> None:
    """Never returns."""
    code = 98
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nothing outlives the tests
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = _run(name, arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(name: str, arguments: list[str]) -> int:
    import wattserve_client.cli
    import wattserve_loadgen.cli
    import wattserve_tools.cli

    sys.argv = [name, *arguments]
    if name == "python":
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")
        return 0
    programs = {
        "wattserve": wattserve_tools.cli.main,
        "loadgen": wattserve_loadgen.cli.main,
        "wattserve-client": wattserve_client.cli.main,
    }
    return programs[name](arguments)


def _exactly(caller: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        part = caller.recv(length - len(found))
        if not part:
            raise EOFError("the caller left")
        found += part
    return found


def _tell(caller: socket.socket, child: int) -> None:
    with caller:
        caller.sendall(f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        caller.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    serve(sys.argv[1])
