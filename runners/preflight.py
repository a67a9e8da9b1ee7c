"""Checks before anything is started: what a person can mend is said in one line, and nothing is half started."""

import importlib.util
import socket
from pathlib import Path

from configs.schema import RunConfig
from runners.usage import UsageError


def check(config: RunConfig, config_path: str) -> None:
    """Everything that `up` needs on this machine; raises UsageError, ConfigError or TaskError with one line."""
    check_model(config, config_path)
    check_tasks(config)
    check_engine(config)
    for name in ("port", "monitor_port"):
        check_port(getattr(config.bus, name), f"bus.{name}")


def check_model(config: RunConfig, config_path: str) -> None:
    path = Path(config.model.path)
    looks_local = path.is_absolute() or config.model.path.startswith((".", "configs/", "runs/"))
    if path.is_dir():
        missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).exists()]
        if missing:
            raise UsageError(f"{config_path}: model.path = {config.model.path!r} has no {' and no '.join(missing)}")
        if not list(path.glob("*.safetensors")):
            raise UsageError(f"{config_path}: model.path = {config.model.path!r} holds no .safetensors weights")
    elif looks_local or not config.model.revision:
        hint = "" if looks_local else "; for a model of the hub give model.revision as well, so that it is pinned"
        raise UsageError(
            f"{config_path}: model.path = {config.model.path!r}: there is no such folder (looked in {Path.cwd()}){hint}"
        )


def check_tasks(config: RunConfig) -> None:
    from core.tasks.loading import load_tasks

    for side in ("train", "heldout"):
        load_tasks([source.model_dump() for source in getattr(config.tasks, side)], config.tasks.backend, side)


def check_engine(config: RunConfig) -> None:
    if config.rollout.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise UsageError(
            "rollout.engine = 'vllm', but vllm is not installed here: "
            "pip install 'kernelmill[vllm]', or set rollout.engine = 'transformers'"
        )


def check_port(port: int, name: str) -> None:
    if not port:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise UsageError(
                f"{name} = {port}: something else listens there; stop it, choose another port, or 0 for a free one"
            ) from None
