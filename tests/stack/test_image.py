"""The image: what its files say, always; and what it does, where `make image-test` names one that was built.

Knows the Dockerfile's grammar as far as this Dockerfile uses it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
import yaml
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from deploy.image import healthcheck
from wattserve_client import Cancelled, Client, Unavailable
from wattserve_server.app import CLOSING_S
from wattserve_server.config import ENVIRONMENT_PREFIX, OTHER_VARIABLES, ServerConfig
from wattserve_server.service.prediction import SETTLEMENT_LIMIT_S

ROOT = Path(__file__).parents[2]
FINAL = ("cpu", "cuda")


# -- The Dockerfile


@dataclass(frozen=True)
class Stage:
    name: str
    base: str
    instructions: tuple[tuple[str, str], ...]

    def arguments(self, word: str) -> list[str]:
        return [arguments for known, arguments in self.instructions if known == word]


def read_stages() -> dict[str, Stage]:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    stages: dict[str, Stage] = {}
    name = ""
    for line in filter(None, text.splitlines()):
        word, arguments = line.split(maxsplit=1)
        if word == "FROM":
            base, _, name = arguments.partition(" AS ")
            stages[name] = Stage(name, base, ())
        elif name:
            stage = stages[name]
            stages[name] = Stage(name, stage.base, (*stage.instructions, (word, arguments)))
    return stages


STAGES = read_stages()


def lineage(name: str) -> list[Stage]:
    """The stage, and those that it stands on."""
    stage = STAGES[name]
    return [stage, *(lineage(stage.base) if stage.base in STAGES else [])]


def last(name: str, word: str) -> str:
    """The instruction that counts: the one nearest to the end."""
    return next(stage.arguments(word)[-1] for stage in lineage(name) if stage.arguments(word))


def test_a_build_without_a_target_gives_the_cpu_image() -> None:
    assert list(STAGES)[-1] == "cpu"


@pytest.mark.parametrize("target", FINAL)
def test_a_number_that_is_not_roots_runs_it(target: str) -> None:
    """A number, since Kubernetes' runAsNonRoot cannot tell who a name is."""
    user, group = last(target, "USER").split(":")
    assert int(user) > 0
    assert int(group) > 0


@pytest.mark.parametrize("target", FINAL)
def test_nothing_but_python_and_certificates_is_installed_in_what_runs(target: str) -> None:
    installed = [
        package
        for stage in lineage(target)
        for command in stage.arguments("RUN")
        for packages in re.findall(r"apt-get install (.*?)(?: && |$)", command)
        for package in packages.split()
        if not package.startswith("-")
    ]
    assert sorted(installed) == ["ca-certificates", "python3"]
    assert not any("pip" in command for stage in lineage(target) for command in stage.arguments("RUN"))


@pytest.mark.parametrize("target", FINAL)
@pytest.mark.parametrize("word", ["ENTRYPOINT", "CMD", "HEALTHCHECK"])
def test_no_shell_stands_between_the_signal_and_the_server(target: str, word: str) -> None:
    arguments = last(target, word)
    assert json.loads(arguments[arguments.index("[") :])


@pytest.mark.parametrize("target", FINAL)
def test_the_final_stages_take_only_environments_that_were_made_elsewhere(target: str) -> None:
    copied = STAGES[target].arguments("COPY")
    assert [line.split()[0] for line in copied] == [f"--from=dependencies-{target}", "--from=application"]


def test_the_command_is_one_that_the_server_takes() -> None:
    assert json.loads(last("cpu", "ENTRYPOINT")) == ["wattserve"]
    command = json.loads(last("cpu", "CMD"))
    assert command[0] == "serve"
    assert ServerConfig(host=command[command.index("--host") + 1], insecure="--insecure" in command)


def test_the_ports_exposed_are_the_servers_own() -> None:
    assert last("cpu", "EXPOSE").split() == [str(ServerConfig().port), str(ServerConfig().metrics_port)]


def test_torch_is_installed_before_the_source_arrives() -> None:
    """An edited source file must not cost a download of torch."""
    for target in FINAL:
        for stage in (STAGES[f"dependencies-{target}"], STAGES["tools"]):
            named = {path for line in stage.arguments("COPY") for path in line.split()[:-1]}
            assert named <= {"--from=requirements", "/requirements.txt", "constraints.txt"}


def requirements_of(file: str, program: str) -> list[str]:
    """What this program in that file makes of the project's requirements."""
    (text,) = re.findall(program, (ROOT / file).read_text(), re.DOTALL)
    made = subprocess.run(
        [sys.executable, "-c", text.replace("\\\n", "\n")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout.splitlines()


@pytest.mark.parametrize(
    ("file", "program"),
    [("Dockerfile", r"RUN python3 -c '(.*?)' >"), ("deploy/image/build.sh", r"<<'PYTHON'\n(.*?)\nPYTHON\n")],
)
def test_it_has_what_a_server_may_be_asked_for(file: str, program: str) -> None:
    """Nobody can install anything into it: an account book in PostgreSQL and the HTTP port are settings."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {"wattserve[server]"}
    for extra in ("server", "postgres", "openai"):
        assert {*extras[extra]} - named <= {*requirements_of(file, program)}
    assert not any(each.startswith("wattserve") for each in requirements_of(file, program))


# -- What the builder is given


def ignored(path: str) -> bool:
    """As .dockerignore has it: the last pattern that fits the path, or a folder above it, decides."""
    result = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if line and not line.startswith("#") and any(fits(part, pattern) for part in (path, *above(path))):
            result = not line.startswith("!")
    return result


def above(path: str) -> list[str]:
    return [str(parent) for parent in Path(path).parents if parent.name]


def fits(path: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatch(Path(path).name, pattern.removeprefix("**/"))
    return fnmatch(path, pattern)


@pytest.mark.parametrize(
    "path",
    [
        ".git/config", ".venv/bin/python", "build/demo/report.html", "tests/conftest.py", "docs/LOG.md",
        "deploy/compose.yaml", "server/wattserve_server/__pycache__/app.cpython-311.pyc", "key.pem", ".env",
    ],
)  # fmt: skip
def test_the_builder_is_not_given(path: str) -> None:
    assert ignored(path)


def test_all_that_the_dockerfile_copies_is_here_and_is_given_to_the_builder() -> None:
    copied = [
        path
        for stage in STAGES.values()
        for line in stage.arguments("COPY")
        if "--from=" not in line
        for path in line.split()[:-1]
        if not path.startswith("--")
    ]
    assert "server" in copied
    assert [path for path in copied if not (ROOT / path).exists()] == []
    assert [path for path in copied if ignored(path)] == []


def test_the_packages_of_the_wheel_are_all_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = {path for line in STAGES["application"].arguments("COPY") for path in line.split()[:-1]}
    assert {Path(package).parts[0] for package in packages} <= copied


# -- The health check


@contextmanager
def health_server(status: Any, credentials: grpc.ServerCredentials | None = None) -> Iterator[dict[str, str]]:
    """Serves grpc.health.v1; gives the environment in which the check finds it."""
    server = grpc.server(ThreadPoolExecutor(1))
    servicer = health.HealthServicer()
    servicer.set("", status)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield {"WATTSERVE_PORT": str(port)}
    finally:
        server.stop(0).wait()


def test_a_server_that_serves_is_healthy() -> None:
    with health_server(health_pb2.HealthCheckResponse.SERVING) as environment:
        assert healthcheck.main(environment) == 0


def test_a_server_that_starts_or_drains_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    with health_server(health_pb2.HealthCheckResponse.NOT_SERVING) as environment:
        assert healthcheck.main(environment) == 1
    assert capsys.readouterr().out == "NOT_SERVING\n"


def test_no_server_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    with health_server(health_pb2.HealthCheckResponse.SERVING) as environment:
        pass
    assert healthcheck.main(environment) == 1
    assert capsys.readouterr().out.startswith("UNAVAILABLE: ")


def test_a_certificate_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert healthcheck.main({"WATTSERVE_TLS_CERT": "/certs/gone.pem"}) == 1
    assert "/certs/gone.pem" in capsys.readouterr().out


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@pytest.mark.parametrize(("client_certificate", "healthy"), [(True, True), (False, False)])
def test_a_server_with_mutual_tls_is_asked_by_its_name_and_shown_a_certificate(
    authority: trustme.CA, tmp_path: Path, client_certificate: bool, healthy: bool
) -> None:
    server, client = authority.issue_cert("wattserve.example"), authority.issue_cert("check.example")
    chain, key, own_chain, own_key = (tmp_path / name for name in ("chain", "key", "own-chain", "own-key"))
    chain.write_bytes(b"".join(pem.bytes() for pem in server.cert_chain_pems))
    key.write_bytes(server.private_key_pem.bytes())
    own_chain.write_bytes(client.cert_chain_pems[0].bytes())
    own_key.write_bytes(client.private_key_pem.bytes())
    credentials = grpc.ssl_server_credentials(
        [(key.read_bytes(), chain.read_bytes())], authority.cert_pem.bytes(), require_client_auth=True
    )
    with health_server(health_pb2.HealthCheckResponse.SERVING, credentials) as environment:
        environment |= {"WATTSERVE_TLS_CERT": str(chain), "HEALTH_TLS_NAME": "wattserve.example"}
        if client_certificate:
            environment |= {"HEALTH_TLS_CERT": str(own_chain), "HEALTH_TLS_KEY": str(own_key)}
        assert (healthcheck.main(environment) == 0) == healthy


# -- Compose


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"])


def test_compose_publishes_on_the_loopback_only(services: dict[str, dict[str, Any]]) -> None:
    published = [port for service in services.values() for port in service["ports"]]
    assert "127.0.0.1:50051:50051" in published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_without_a_profile_compose_starts_one_server(services: dict[str, dict[str, Any]]) -> None:
    started = {name for name, service in services.items() if "profiles" not in service}
    assert started == {"server", "prometheus", "grafana"}


def test_compose_builds_targets_that_the_dockerfile_has(services: dict[str, dict[str, Any]]) -> None:
    targets = {name: service["build"]["target"] for name, service in services.items() if "build" in service}
    assert targets == {"server": "cpu", "server-gpu": "cuda"}
    assert set(targets.values()) <= set(STAGES)


def test_images_of_others_are_pinned(services: dict[str, dict[str, Any]]) -> None:
    foreign = [service["image"] for service in services.values() if "build" not in service]
    assert [image for image in foreign if not re.fullmatch(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+", image)] == []


def test_the_files_that_compose_mounts_are_here(services: dict[str, dict[str, Any]]) -> None:
    mounted = [
        volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", [])
        if volume.startswith(".")
    ]
    assert mounted
    assert [path for path in mounted if not (ROOT / "deploy" / path).exists()] == []


def test_the_settings_in_compose_are_settings(services: dict[str, dict[str, Any]]) -> None:
    known = {ENVIRONMENT_PREFIX + item.name.upper() for item in fields(ServerConfig)} | OTHER_VARIABLES
    for name in ("server", "server-gpu"):
        assert set(services[name]["environment"]) - known == set()


def test_compose_waits_longer_for_the_end_than_a_drain_may_take(services: dict[str, dict[str, Any]]) -> None:
    longest = ServerConfig().drain_seconds + SETTLEMENT_LIMIT_S + CLOSING_S
    assert int(services["server"]["stop_grace_period"].removesuffix("s")) > longest


def test_compose_runs_the_images_own_health_check(services: dict[str, dict[str, Any]]) -> None:
    stated = last("cpu", "HEALTHCHECK")
    assert services["server"]["healthcheck"]["test"] == ["CMD", *json.loads(stated[stated.index("[") :])]


# -- The image itself, where one was built

IMAGE = os.environ.get("WATTSERVE_IMAGE", "")
ENGINE = os.environ.get("WATTSERVE_IMAGE_ENGINE", "podman")
needs_image = pytest.mark.skipif(
    not IMAGE, reason="make image-test builds no image here: WATTSERVE_IMAGE names none"
)

STARTING_S = 600.0
"""The first start trains the demo model."""


def engine(*arguments: str, check: bool = True) -> str:
    """Standard output and error. Raises AssertionError, with both, when it fails."""
    done = subprocess.run(
        [ENGINE, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300
    )
    assert done.returncode == 0 or not check, done.stdout
    return done.stdout


def inspect(what: str, name: str) -> dict[str, Any]:
    done = subprocess.run([ENGINE, what, "inspect", name], text=True, capture_output=True, check=True)
    return dict(json.loads(done.stdout)[0])


@dataclass(frozen=True)
class Running:
    container: str
    address: str
    seconds_to_ready: float

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command inside."""
        return subprocess.run(
            [ENGINE, "exec", self.container, *command], text=True, capture_output=True, timeout=120
        )


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """As docs/how-to/docker.md runs it: it can write to /tmp and the cache only, and has no capability."""
    container = f"wattserve-image-test-{os.getpid()}"
    volume = f"{container}-cache"
    started = time.monotonic()
    engine(
        "run", "--detach", "--name", container, "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--publish", "127.0.0.1::50051",
        "--volume", f"{volume}:/cache", "--env", "WATTSERVE_VARIANTS=fp32,int8", IMAGE,
    )  # fmt: skip
    try:
        while (
            "SERVING" not in engine("exec", container, "python", "/opt/healthcheck.py", check=False).split()
        ):
            state = inspect("container", container)["State"]
            assert state["Running"], engine("logs", container)
            assert time.monotonic() - started < STARTING_S, engine("logs", container)
            time.sleep(1)
        address = engine("port", container, "50051/tcp").split()[-1]
        yield Running(container, address, time.monotonic() - started)
    finally:
        engine("rm", "--force", container, check=False)
        engine("volume", "rm", "--force", volume, check=False)


@needs_image
def test_the_image_says_what_it_is() -> None:
    described = inspect("image", IMAGE)
    labels = described["Config"]["Labels"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert labels["org.opencontainers.image.version"] == version
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.base.name"]
    assert described["Config"]["User"] == "10001:10001"
    health_check = described.get("Healthcheck") or described["Config"]["Healthcheck"]  # podman's, docker's
    assert health_check["Test"] == ["CMD", "python", "/opt/healthcheck.py"]
    print(f"\n{IMAGE}: {described['Size'] / 1e9:.2f} GB")


@needs_image
@pytest.mark.timeout(STARTING_S + 60)
def test_it_becomes_healthy_on_a_file_system_that_cannot_be_written(running: Running) -> None:
    print(f"\nserving {running.seconds_to_ready:.0f} s after its first start, on an empty cache")
    assert "Read-only file system" in running.run("touch", "/opt/anything").stderr


@needs_image
def test_inside_it_is_not_root_and_has_no_capability(running: Running) -> None:
    assert running.run("id", "-u").stdout == "10001\n"
    status = running.run("cat", "/proc/1/status").stdout
    assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)


@needs_image
@pytest.mark.parametrize("tool", ["gcc", "cc", "g++", "make", "ld", "git", "curl", "pip", "pip3"])
def test_inside_there_is_nothing_to_build_with(running: Running, tool: str) -> None:
    assert running.run("sh", "-c", f"command -v {tool}").stdout == ""


@needs_image
def test_neither_python_inside_has_pip(running: Running) -> None:
    for python in ("python", "/usr/bin/python3"):
        assert "No module named pip" in running.run(python, "-m", "pip").stderr


@needs_image
def test_nothing_of_the_way_it_was_built_is_left(running: Running) -> None:
    assert running.run("ls", "/src", "/mnt", "/requirements.txt", "/etc/pip.conf").stdout == "/mnt:\n"


@needs_image
def test_a_request_from_outside_is_answered_with_a_settled_receipt(running: Running) -> None:
    with Client(running.address, timeout_s=60) as client:
        answer = client.predict("a delightful film", variant="int8", wait_for_settled_energy=True)
    print(f"\n{answer.label}: {answer.receipt}")
    assert answer.label == "positive"
    assert answer.receipt.settled
    assert answer.receipt.energy_uj is not None
    assert answer.receipt.energy_uj > 0


@needs_image
def test_sigterm_drains_it(running: Running) -> None:
    """Last, since it ends the server: what was accepted is answered, and the books are closed.

    A call that arrives while gRPC shuts the port is not told "unavailable" but reset, which is Cancelled.
    """
    answered: list[str | None] = []
    refused: list[BaseException] = []
    first = threading.Event()

    def ask_until_refused() -> None:
        with Client(running.address, timeout_s=60, retry=False) as client:
            while True:
                try:
                    answered.append(client.predict("a delightful film").label)
                except BaseException as error:
                    refused.append(error)
                    return
                finally:
                    first.set()

    asking = threading.Thread(target=ask_until_refused)
    asking.start()
    assert first.wait(60)
    engine("stop", "--time", "60", running.container)
    asking.join(60)
    assert set(answered) == {"positive"}
    assert isinstance(refused[0], Unavailable | Cancelled), refused[0]
    assert inspect("container", running.container)["State"]["ExitCode"] == 0
    account = engine("logs", running.container).splitlines()[-1]
    print(f"\n{len(answered)} answered, then {refused[0]}\n{account}")
    assert account.startswith("wattserve: drained: ")
    assert account.endswith("pending 0.000")
