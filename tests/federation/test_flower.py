"""A real federation on loopback: SuperLink, proxy and three SuperNodes over TLS with node keys."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from fedgloss import Federation, Problem, train
from fedgloss.checkpoint import Checkpoints
from fedgloss.config import resolve
from fedgloss.costs import ledger
from fedgloss.federation import SiteMemory
from fedgloss.federation.create import create
from fedgloss.job import Network, build_algorithm, build_federation
from fedgloss.messages import ServerState
from fedgloss.records import RunFolder, read_json, read_lines

pytestmark = pytest.mark.integration
pytest.importorskip("flwr")

SITES, SAMPLES, PATIENCE = 3, 48, 300
DATA = f"""
from fedgloss.config import resolve
from fedgloss.job import build_federation

TRIAL = build_federation(resolve("digits", {{"data.clients": {SITES}, "data.split": "iid"}}).config)
SHAPE, CLASSES, TRANSFORM = (1, 32, 32), 10, TRIAL.transform


def client_data(node_config):
    return TRIAL.train.fetch(TRIAL.partition[int(node_config["partition-id"])][:{SAMPLES}])


def test_data():
    return TRIAL.test.inputs[:100], TRIAL.test.targets[:100]
"""


@dataclass(frozen=True)
class Deployment:
    """A folder of `fedgloss federation init` whose start.sh runs."""

    folder: Path
    port: int
    proxy: int
    variables: Mapping[str, str] = field(default_factory=dict)
    restarted: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def authority(self) -> Path:
        return self.folder / "certificates/ca.crt"

    @property
    def environment(self) -> dict[str, str]:
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # Flower's start each other by name
        home = str(self.folder / "flower")
        return {**os.environ, **quiet, **self.variables, "FLWR_HOME": home, "PATH": programs}

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "flwr"), *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE)

    def choose(self, algorithm: str) -> None:
        """Let the app train another method."""
        path = self.folder / "app/federated/config.toml"
        path.write_text(re.sub(r'name = "(naive-)?fedgloss"', f'name = "{algorithm}"', path.read_text()))

    def submit(self, run: Path, where: str = "trial", settings: str = "") -> None:
        chosen = f'run-folder="{run}" {settings}'
        ended = self.flwr("run", str(self.folder / "app"), where, "--run-config", chosen)
        assert ended.returncode == 0, ended.stdout + ended.stderr

    def kill(self, name: str) -> None:
        """End a part and all that it started, as a power cut would."""
        for process in family(int((self.folder / f"logs/{name}.pid").read_text())):
            os.kill(process, signal.SIGKILL)

    def end(self, name: str) -> None:
        """End a part as its operator would."""
        process = int((self.folder / f"logs/{name}.pid").read_text())
        members = family(process)
        os.kill(process, signal.SIGTERM)
        await_(lambda: not set(members) & alive(), f"the end of {name}", self.logs)

    def start_again(self, name: str, *command: str) -> None:
        with (self.folder / f"logs/{name}-again.log").open("w") as log:
            started = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)
        self.restarted.append(started)

    def finished(self, run: Path, patience: float = PATIENCE) -> dict[str, object]:
        await_(lambda: (run / "summary.json").exists(), f"{run} to end", self.logs, patience)
        summary: dict[str, object] = json.loads((run / "summary.json").read_text())
        return summary

    def logs(self, names: str = "*.log") -> str:
        paths = sorted((self.folder / "logs").glob(names))
        return "\n".join(f"== {path.name}\n{path.read_text()[-10_000:]}" for path in paths)

    def problem(self) -> Problem:
        """What the sites learn together, as one process sees it."""
        trial = build_federation(resolve("digits", {"data.clients": SITES, "data.split": "iid"}).config)
        parts = [trial.partition[site][:SAMPLES] for site in range(SITES)]
        assert trial.test is not None
        tests = trial.test.inputs[:100], trial.test.targets[:100]  # type: ignore[attr-defined]
        inputs, targets = trial.train.inputs, trial.train.targets  # type: ignore[attr-defined]
        federation = Federation.from_arrays(inputs, targets, clients=parts, test=tests, transform=trial.transform)
        return Problem(federation, Network("cnn", (1, 32, 32), 10))


def await_(what: object, name: str, logs: object = str, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not what():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited in vain for {name}\n{logs()}"  # type: ignore[operator]
        time.sleep(0.2)


def family(root: int) -> list[int]:
    """A process and all that it started."""
    rows = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in rows.splitlines():
        pid, parent = map(int, line.split())
        children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def alive() -> set[int]:
    rows = subprocess.run(["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True, check=True).stdout
    return {int(pid) for pid, stat in map(str.split, rows.splitlines()) if not stat.startswith("Z")}


def of_folder(folder: Path) -> dict[int, str]:
    """Processes that name the folder, or that one of its environment started, with their commands."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment, command = (path / "environ").read_bytes(), (path / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in environment + command and path.name != str(os.getpid()):
            found[int(path.name)] = command.replace(b"\0", b" ").decode()
    return found


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("federation") / "trial"
    create(folder, sites=SITES)
    (folder / "app/federated/data.py").write_text(DATA)
    proxy_rules = folder / "nginx.conf"
    proxy_rules.write_text(proxy_rules.read_text().replace("client_max_body_size 256m", "client_max_body_size 16m"))
    text = (folder / "superlink.sh").read_text() + (folder / "site.sh").read_text()
    port = int(re.findall(r"--port (\d+)", text)[0])
    proxy = int(re.findall(r"127.0.0.1:(\d+)\}", text)[0])
    started = Deployment(folder, port, proxy)
    log = (folder / "start.log").open("w")
    process = subprocess.Popen([folder / "start.sh"], stdout=log, stderr=log, start_new_session=True)
    try:
        await_((folder / "ready").exists, "the federation to start", lambda: (folder / "start.log").read_text())
        yield started
    finally:
        process.terminate()
        process.wait(timeout=60)
        for again in started.restarted:
            for member in family(again.pid):
                with suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
            again.wait()
        log.close()
    # all ports are free and no process is left
    await_(lambda: not of_folder(folder), f"the end of {of_folder(folder).values()}")
    for number in (port, proxy, *range(port + 2, port + 2 + SITES)):
        await_(lambda number=number: free(number), f"port {number} to be free")


def free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def final(run: Path) -> ServerState:
    checkpoints = Checkpoints(RunFolder(run))
    return checkpoints.state(max(checkpoints.rounds()))


def serial(deployment: Deployment) -> ServerState:
    config = resolve(deployment.folder / "app/federated/config.toml").config
    torch.set_num_threads(1)
    history = train(build_algorithm(config), deployment.problem(), rounds=3, cohort=SITES, eval_every=1)
    return history.state


def equal(one: ServerState, other: ServerState) -> bool:
    return one.vectors.keys() == other.vectors.keys() and all(one[n].equal(other[n]) for n in one.vectors)


def test_three_sites_give_the_bits_of_one_process_and_the_bytes_of_the_ledger(deployment: Deployment) -> None:
    run = deployment.folder / "fedgloss"
    deployment.submit(run)
    summary = deployment.finished(run)
    assert summary["status"] == "finished", deployment.logs()
    assert summary["incidents"] == 0
    assert equal(final(run), serial(deployment))
    rows = [line.split() for line in (deployment.folder / "proxy/access.log").read_text().splitlines()]
    measured = sum(int(received) + int(sent) for _, received, sent, _ in rows)
    counted = ledger(read_lines(run / "rounds.jsonl", "round")).bytes
    assert counted == pytest.approx(measured, rel=0.02)


def test_a_second_start_is_refused_and_disturbs_nothing(deployment: Deployment) -> None:
    before = {path: path.read_bytes() for path in (deployment.folder / "logs").glob("*.pid")}
    again = subprocess.run([deployment.folder / "start.sh"], capture_output=True, text=True, timeout=60)
    assert (again.returncode, again.stderr) == (1, f"{deployment.folder}/start.sh runs already\n")
    assert {path: path.read_bytes() for path in (deployment.folder / "logs").glob("*.pid")} == before
    assert (deployment.folder / "ready").exists()


def test_a_server_killed_mid_run_goes_on_with_the_same_bits(deployment: Deployment) -> None:
    run = deployment.folder / "interrupted"
    deployment.submit(run)
    await_(lambda: (run / "rounds.jsonl").exists() and read_lines(run / "rounds.jsonl"), "a round", deployment.logs)
    deployment.kill("superlink")
    assert not (run / "summary.json").exists()
    await_(lambda: free(deployment.port), "the port")
    deployment.start_again("superlink", "./superlink.sh")
    await_(lambda: not free(deployment.port), "the SuperLink", deployment.logs)
    deployment.submit(run)
    assert deployment.finished(run)["status"] == "finished", deployment.logs()
    assert equal(final(run), serial(deployment))


def test_a_site_killed_and_restarted_mid_run_changes_no_bit(deployment: Deployment) -> None:
    deployment.choose("naive-fedgloss")
    run = deployment.folder / "naive"
    deployment.submit(run)
    await_(lambda: (run / "rounds.jsonl").exists() and read_lines(run / "rounds.jsonl"), "a round", deployment.logs)
    deployment.kill("site-1")
    deployment.start_again("site-1", "./site.sh", "1")
    assert deployment.finished(run)["status"] == "finished", deployment.logs()
    assert equal(final(run), serial(deployment))


LIES = """
import os, time
from dataclasses import replace
import torch
from flwr.app import ConfigRecord
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body
import fedgloss.transports.flower as flower
from fedgloss.codec import decode, encode
from fedgloss.messages import Update

def changed(reply, **changes):
    return reply | {"update": encode(replace(decode(Update, reply["update"]), **changes))}

def with_value(reply, value):
    delta = decode(Update, reply["update"])["delta"].clone()
    delta[7] = value
    return changed(reply, vectors={"delta": delta})

def late(reply):
    time.sleep(TIMEOUT + 10)
    return reply

def unreadable(reply):
    ConfigRecord.deflate = lambda record: add_header_to_object_body(b"\\xff" * 100, record)
    return reply

LIES = {
    (1, 1): lambda reply: with_value(reply, float("nan")),
    (1, 2): lambda reply: with_value(reply, 1e9),
    (2, 1): lambda reply: changed(reply, vectors={"delta": torch.zeros(5)}),
    (2, 2): lambda reply: reply | {"round": 1},
    (3, 1): lambda reply: reply | {"update": bytes(40_000_000)},
    (3, 2): late,
    (4, 1): unreadable,
    (4, 2): lambda reply: os._exit(1),
}
honest = flower.answer

def answer(learning, node_config, folder, letter):
    reply = honest(learning, node_config, folder, letter)
    return LIES.get((reply["round"], node_config["partition-id"]), lambda reply: reply)(reply)

flower.answer = answer
"""
TWICE = """
import copy
import flwr.supernode.start_client_internal as supernode
from flwr.supernode.cli.flower_supernode import flower_supernode

push = supernode._push_messages

def twice(send, **others):
    def send_both(message, tree, seconds):
        other = copy.deepcopy(message)
        other.metadata.__dict__["_message_id"] = "ab" * 32
        first = send(message, tree, seconds)
        send(other, tree, seconds)
        return first
    push(send=send_both, **others)

supernode._push_messages = twice
flower_supernode()
"""
NAMED = {
    (1, 1): "sent a delta that is not finite",
    (1, 2): "sent a delta of norm 1e+09, above 1e+06",
    (2, 1): "bytes where an update has",
    (2, 2): "answered round 1 ('train'), asked was 2 (train)",
    (3, 1): "did not answer in time",  # the proxy let none of it through
    (3, 2): "did not answer in time",
    (4, 1): "sent what cannot be read",
    (4, 2): "did not answer in time",  # its process died
}


@pytest.mark.slow  # rounds that wait for sites in vain, on a busy machine again and again
def test_what_sites_send_amiss_is_refused_and_named_and_the_rest_goes_on(deployment: Deployment) -> None:
    deployment.choose("fedgloss")
    app, config = (deployment.folder / "app/federated" / name for name in ("app.py", "config.toml"))
    originals, timeout = (app.read_text(), config.read_text()), 30
    app.write_text(LIES.replace("TIMEOUT", str(timeout)) + originals[0])
    config.write_text(originals[1].replace("rounds = 3", "rounds = 6"))
    deployment.end("site-0")
    twice = deployment.folder / "twice.py"
    twice.write_text(TWICE)
    script = deployment.folder / "twice.sh"
    script.write_text(
        (deployment.folder / "site.sh").read_text().replace("flower-supernode --", f"python {twice} --")
    )
    deployment.start_again("site-0", "bash", str(script), "0")
    run = deployment.folder / "lies"
    try:
        deployment.submit(run, settings=f"minimum-sites=1 timeout={timeout}")
        assert deployment.finished(run, 4 * PATIENCE)["status"] == "finished", deployment.logs()
    finally:
        app.write_text(originals[0])
        config.write_text(originals[1])
    rounds = read_lines(run / "rounds.jsonl", "round")
    named = {(line["round"], int(site)): why for line in rounds for site, why in line.get("dropped", {}).items()}
    assert {key: NAMED[key] in named.get(key, "") for key in NAMED} == dict.fromkeys(NAMED, True), named
    assert {(i["round"], i["site"]) for i in read_lines(run / "incidents.jsonl")} >= set(named)
    assert " 413 " in f" {(deployment.folder / 'proxy/access.log').read_text()}".replace("\n", " ")
    assert "duplicate reply" in deployment.logs("superlink*.log")  # of site 0, whose first reply counts
    # sigma = mean of sigma_k, as it lies on the sites' own disks
    state, name = final(run), read_json(run / "identity.json")["run"]
    versions = Checkpoints(RunFolder(run)).versions(state.round)
    assert versions.keys() == set(range(SITES))
    duals = []
    for site, version in versions.items():
        memory = SiteMemory(deployment.folder / f"memory/site-{site}", name, size=state["dual"].numel())
        known = memory.settle(version, state.round)
        assert known is not None
        duals.append(known["dual"].double())
    mean = torch.stack(duals).mean(0)
    assert float((state["dual"].double() - mean).norm() / mean.norm()) < 1e-5


def test_flower_s_simulation_gives_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    folder = tmp_path / "trial"
    create(folder, sites=SITES)
    (folder / "app/federated/data.py").write_text(DATA)
    ports = {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": free_port(), "FLWR_LOCAL_CONTROL_API_PORT": free_port()}
    simulated, run = Deployment(folder, 0, 0, ports), folder / "simulated"
    try:
        simulated.submit(run, "simulation")
        assert simulated.finished(run)["status"] == "finished", simulated.logs()
        assert equal(final(run), serial(simulated))
    finally:
        for process in of_folder(folder):  # Flower leaves its own SuperLink running
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def ask(port: int, path: str, authority: Path) -> int:
    context = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)
    try:
        connection.request("POST", path, body=b"", headers={"Content-Type": "application/protobuf"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_proxy_passes_the_fleet_s_routes_alone(deployment: Deployment) -> None:
    authority = deployment.authority
    # without the proxy the control API answers whoever asks: this is what the proxy is for
    assert ask(deployment.port, "/v1/control/list-nodes", authority) == 200
    for path in (
        "/v1/control/list-nodes",
        "/v1/control/start-run",
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes",
        "/v1/fleet/..%2fcontrol/list-nodes",
        "//v1/control/list-nodes",
        "/V1/CONTROL/list-nodes",
        "/v1/runtime/acquire-task",
        "/health",
        "/",
    ):
        assert ask(deployment.proxy, path, authority) in (403, 404), path
    command = [str(Path(sys.executable).parent / "flwr"), "supernode", "list", "proxy"]
    config = deployment.folder / "flower/config.toml"
    config.write_text(
        config.read_text()
        + f'\n[superlink.proxy]\naddress = "127.0.0.1:{deployment.proxy}"\nroot-certificates = "{authority}"\n'
    )
    ended = subprocess.run(command, env=deployment.environment, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode != 0
    # and a message without a node's signature is not heard
    assert ask(deployment.proxy, "/v1/fleet/pull-messages", authority) in (400, 401, 403)


def test_an_unknown_node_is_refused(deployment: Deployment, tmp_path: Path) -> None:
    other = tmp_path / "other"
    create(other, sites=1)
    command = [
        str(Path(sys.executable).parent / "flower-supernode"), "--superlink", f"127.0.0.1:{deployment.proxy}",
        "--root-certificates", str(deployment.folder / "certificates/ca.crt"), "--max-retries", "1",
        "--port", str(deployment.port + 20),
    ]  # fmt: skip

    def entrances() -> list[str]:
        visits = (deployment.folder / "proxy/access.log").read_text().splitlines()
        return [visit for visit in visits if visit.endswith(("/activate-node", "/register-node"))]

    await_(lambda: len([line for line in entrances() if line.startswith("200 ")]) >= SITES, "the sites to enter")
    for key in (["--auth-supernode-private-key", str(other / "keys/site-0")], []):
        before = len(entrances())
        with (tmp_path / "log").open("w") as log:  # a file: what the SuperNode leaves behind would hold a pipe open
            process = subprocess.Popen(
                [*command, *key], env=deployment.environment, stdout=log, stderr=log, start_new_session=True
            )
            try:
                code = process.wait(timeout=PATIENCE)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        assert code != 0, (tmp_path / "log").read_text()
        tried = entrances()[before:]
        assert tried, (tmp_path / "log").read_text()
        assert not [line for line in tried if line.startswith("200 ")]
