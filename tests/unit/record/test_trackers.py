"""Trackers: jsonl always, wandb without a word to the network unless there is a key."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from core.identity import digest
from core.record.redact import redacted
from core.record.trackers import JsonlTracker, TrackerError, open_trackers, wandb_mode

KEY = {"WANDB_API_KEY": "k"}


@pytest.mark.parametrize(
    ("configured", "environment", "mode"),
    [
        ("auto", {}, "offline"),
        ("auto", KEY, "online"),
        ("auto", {"WANDB_API_KEY": ""}, "offline"),
        ("offline", KEY, "offline"),
        ("online", KEY, "online"),
        ("disabled", KEY, "disabled"),
        ("online", {**KEY, "WANDB_MODE": "offline"}, "offline"),
        ("auto", {**KEY, "WANDB_MODE": "dryrun"}, "offline"),
        ("auto", {"WANDB_MODE": "disabled"}, "disabled"),
        ("disabled", {**KEY, "WANDB_MODE": "online"}, "online"),
    ],
)
def test_wandb_mode(configured: str, environment: dict[str, str], mode: str) -> None:
    assert wandb_mode(configured, environment) == mode


def test_online_without_a_key_and_unknown_modes_are_refused() -> None:
    with pytest.raises(TrackerError, match="WANDB_API_KEY is not set"):
        wandb_mode("online", {})
    with pytest.raises(TrackerError, match="'onlin' is unknown; use one of auto, offline, online, disabled"):
        wandb_mode("auto", {"WANDB_MODE": "onlin"})


def test_credentials_are_hidden_and_nothing_else() -> None:
    config = {
        "bus": {"url": "nats://user:p@ss@broker:4222", "token": "s3cret", "port": 0},
        "rollout": {"max_new_tokens": 512, "token": ""},
        "sources": [{"api_key": "k", "path": "https://example.org/x"}],
    }
    assert redacted(config) == {
        "bus": {"url": "nats://(hidden)@broker:4222", "token": "(hidden)", "port": 0},
        "rollout": {"max_new_tokens": 512, "token": ""},
        "sources": [{"api_key": "(hidden)", "path": "https://example.org/x"}],
    }


def test_jsonl_keeps_steps_over_restarts(tmp_path: Path) -> None:
    first = JsonlTracker(tmp_path)
    first.log(1, {"reward/mean": 0.5, "grad_norm": None}, 10.0)
    path = tmp_path / "record" / "tracked.jsonl"
    path.write_bytes(path.read_bytes() + b'{"torn')
    trackers = open_trackers(tmp_path, run_id="r", name="r", project="p", wandb="disabled", config={}, environment={})
    assert len(trackers) == 1
    trackers[0].log(2, {"reward/mean": 0.6}, 11.0)
    trackers[0].finish({"steps": 2})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "at": 10.0, "reward/mean": 0.5},
        {"step": 2, "at": 11.0, "reward/mean": 0.6},
        {"summary": {"steps": 2}},
    ]


WANDB = """
from core.record.redact import redacted
from core.record.trackers import open_trackers
import sys
assert "wandb" not in sys.modules
config = {"seed": 7, "bus": {"token": "s3cret"}}
jsonl, wandb = open_trackers(sys.argv[1], run_id="demo", name="demo", project="p", wandb="auto", config=config)
wandb.log(1, {"reward/mean": 0.5, "grad_norm": None}, 10.0)
wandb.finish({"steps": 1})
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_wandb_offline_never_calls_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
        environment |= {"WANDB_BASE_URL": url, "HTTPS_PROXY": url, "HTTP_PROXY": url, "HOME": str(tmp_path)}
        subprocess.run([sys.executable, "-c", WANDB, str(tmp_path)], env=environment, check=True, timeout=150)
        with pytest.raises(BlockingIOError):
            server.accept()
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert file.name == f"run-{digest('demo', size=8)}.wandb", "a restart must find the same run"
    assert b"reward/mean" in file.read_bytes()
    assert b"s3cret" not in b"".join(path.read_bytes() for path in (tmp_path / "wandb").rglob("*") if path.is_file())
