"""Servers that take less than a run may send: what fits all the same, and what is said of the rest."""

import asyncio
import os
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog
import yaml

from bus.broker import TooLarge, Unreachable
from bus.nats import NatsBroker
from bus.run_bus import BLOB_BYTES, RunBus
from bus.server import find_server
from bus.topology import topology
from runners import doctor

ROOT = Path(__file__).parents[3]
MIB = 1024 * 1024


@contextmanager
def running(folder, *arguments, token="secret", **environment):
    """A nats-server as a person starts it; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [find_server(), "-a", "127.0.0.1", "-p", str(port), *arguments]
    if "-c" not in arguments or "-js" in arguments:  # else its file says where
        command += ["-sd", str(folder / "store")]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, env={**os.environ, **environment}, cwd=folder)
    try:
        while True:
            assert process.poll() is None, (folder / "server.log").read_text()
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.02)
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def with_limit(folder, limit):
    conf = folder / "small.conf"
    conf.write_text(f"max_payload: {limit}\n")
    return running(folder, "-js", "--auth", "secret", "-c", str(conf))


def on(url, body, token="secret"):
    async def main():
        broker = await NatsBroker.connect(url, token, name="learner-0")
        await broker.ensure(
            topology("run", device_classes=[("triton", "cpu")], ack_wait_s=60, dead_after_s=7, max_worker_deaths=3)
        )
        bus = RunBus(broker, "run", "learner-0")
        try:
            return await body(bus)
        finally:
            await bus.close()

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_a_server_with_its_own_defaults_takes_adapters(tmp_path):
    data = os.urandom(3 * BLOB_BYTES + 17)

    async def body(bus):
        return await bus.blob("v1", await bus.put_blob("v1", data), 20)

    with running(tmp_path, "-js", "--auth", "secret") as url, structlog.testing.capture_logs() as logs:
        assert on(url, body) == data
        told = [line for line in logs if line["event"] == "bus.narrow"]
        assert len(told) == 1 and "1048576 bytes at most, 8 MB are wanted" in told[0]["why"]
        assert "configs/nats.conf" in told[0]["mend"]


def test_a_message_that_is_too_large_there_is_told_with_what_to_do(tmp_path):
    async def body(bus):
        with pytest.raises(TooLarge, match=r"the server takes 1047552: start it with configs/nats\.conf"):
            await bus.fact("stalled", text="x" * MIB)

    with running(tmp_path, "-js", "--auth", "secret") as url:
        on(url, body)


def test_a_server_below_what_a_run_needs_is_refused_in_one_line(tmp_path):
    async def body(bus):
        raise AssertionError

    with with_limit(tmp_path, 65536) as url:
        with pytest.raises(Unreachable, match=r"takes messages of 65536 bytes at most; 1048576 are needed") as told:
            on(url, body)
        assert "configs/nats.conf" in str(told.value) and "learner-0 did not connect" in str(told.value)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("token", ["12ab34cd", "4e10ab", '"1234"'])
def test_the_shipped_file_gives_messages_of_8_mb_and_wants_the_token(tmp_path, token):
    conf = str(ROOT / "configs" / "nats.conf")

    async def body(bus):
        await bus.fact("stalled", text="x" * 7 * MIB)
        return bus.broker.max_message

    given = {"NATS_TOKEN": token, "NATS_STORE": str(tmp_path / "store")}
    with running(tmp_path, "-c", conf, **given) as url:
        assert on(url, body, token.strip('"')) == 8 * MIB - 1024
        with pytest.raises(Unreachable, match="refuses the token"):
            on(url, body, "another")
        assert (tmp_path / "store" / "jetstream").is_dir()
    for missing in given:
        environment = {**os.environ, **given}
        del environment[missing]
        done = subprocess.run([find_server(), "-c", conf], capture_output=True, text=True, env=environment)
        assert done.returncode != 0 and f"variable reference for '{missing}' on line" in done.stderr


def test_the_doctor_looks_at_the_broker_that_is_named(tmp_path, monkeypatch):
    def said(url):
        monkeypatch.setenv("NATS_URL", url)
        return next(doctor._guarded(doctor.broker))

    monkeypatch.setenv("NATS_TOKEN", "secret")
    cases = {"small": ["-js"], "right": ["-js"], "no-js": []}
    (tmp_path / "right.conf").write_text("max_payload: 8MB\n")
    for name, arguments in cases.items():
        (tmp_path / name).mkdir()
        more = [] if name == "small" else ["-c", str(tmp_path / "right.conf")]
        with running(tmp_path / name, *arguments, *more, "--auth", "secret") as url:
            found = said(url)
        assert found.ok is (name == "right"), found
        assert {"small": "1048576 bytes", "right": "8 MiB", "no-js": "no JetStream"}[name] in found.found
    gone = said(url)
    assert gone.ok is False and "could not be reached" in gone.found
    assert "secret" not in said(url.replace("nats://", "nats://secret@")).found


def test_compose_starts_nothing_without_a_token_of_ones_own():
    text = (ROOT / "docker-compose.yml").read_text()
    compose = yaml.safe_load(text)
    assert "NATS_TOKEN:-" not in text
    services = compose["services"]
    for name, service in services.items():
        token = service["environment"]["NATS_TOKEN"].strip('"')
        assert token.startswith("${NATS_TOKEN:?") and token.endswith("}"), name
    assert compose["configs"]["nats_conf"]["file"] == "configs/nats.conf"
    assert "--auth" not in services["nats"]["command"]
