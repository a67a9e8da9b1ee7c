"""Checks before anything is started: what a person can mend is said in one line, and nothing is half started."""

import importlib.util
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.schema import RunConfig
from core import plain_files
from runners.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.tasks.rows import Refused
    from core.tasks.task import Task


def check(config: RunConfig, config_path: str) -> None:
    """Everything that `up` needs on this machine; raises UsageError, ConfigError or TaskError with one line."""
    check_rest(config, config_path)
    check_engine(config)
    check_packages()


def check_rest(config: RunConfig, config_path: str) -> None:
    """The same without the engine."""
    for part in parts(config, config_path).values():
        part()


def parts(config: RunConfig, config_path: str) -> "dict[str, Callable[[], None]]":
    """By what each is about; each raises as `check`, whatever is wrong with the others."""
    return {
        "model": lambda: check_model(config, config_path),
        "tasks": lambda: check_tasks(config),
        "weights": lambda: check_weights(config),
        "judge": lambda: check_judge(config),
        "learner": lambda: check_learner(config),
        "cards": lambda: check_cards(config),
        "bus": lambda: check_bus(config),
    }


def check_bus(config: RunConfig) -> None:
    if config.bus.url:
        from bus.address import check_url

        check_url(config.bus.url)
    for name in ("port", "monitor_port"):
        check_port(getattr(config.bus, name), f"bus.{name}")


def check_packages() -> None:
    """One that can't be imported is refused: actors would die of it at every start. Another version than is wanted may
    do, and is told on stderr."""
    import sys

    from runners import packages

    for odd in packages.check():
        print(f"note: {odd.told()}: {odd.advice()}", file=sys.stderr)


def check_model(config: RunConfig, config_path: str) -> None:
    path = Path(config.model.path)
    looks_local = path.is_absolute() or config.model.path.startswith((".", "configs/", "runs/"))
    if path.is_dir():
        check_model_folder(path, f"{config_path}: model.path")
        check_lengths(config, path, config_path)
    elif looks_local or not config.model.revision:
        hint = "" if looks_local else "; for a model of the hub give model.revision as well, so that it is pinned"
        raise UsageError(
            f"{config_path}: model.path = {config.model.path!r}: there is no such folder (looked in {Path.cwd()}){hint}"
        )


def check_model_folder(path: Path, setting: str) -> None:
    """The files that a policy's folder must have; `setting` is what named it."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (found := plain_files.kind(path / name)) not in (plain_files.FILE, plain_files.NOTHING):
            raise UsageError(f"{setting}: {path / name}: {found}, wanted a file")
    for file in path.glob("*.safetensors"):
        if (found := plain_files.kind(file)) != plain_files.FILE:
            raise UsageError(f"{setting}: {file}: {found}, wanted a file")
    missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).exists()]
    if missing:
        hint = ""
        if (path / "manifest.json").exists() and path.parent.name == "checkpoints":
            hint = f"; `kernelmill export {path.parent.parent}` makes a policy of a checkpoint"
        raise UsageError(f"{setting} = {str(path)!r} has no {' and no '.join(missing)}{hint}")
    if not list(path.glob("*.safetensors")):
        raise UsageError(f"{setting} = {str(path)!r} holds no .safetensors weights")
    check_model_files(path, setting)


def check_model_files(path: Path, setting: str) -> None:
    """Can the folder's files be read at all? Costs milliseconds and no torch; a broken one would only show when the
    actors die of it."""
    import json

    from safetensors import SafetensorError, safe_open
    from tokenizers import Tokenizer

    def broken(name: str, why: object) -> UsageError:
        return UsageError(f"{setting}: {path / name} can't be used: {' '.join(str(why).split())[:200]}")

    try:
        model_type = json.loads((path / "config.json").read_text())["model_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise broken("config.json", f"no JSON with a model_type ({error})") from None
    if not isinstance(model_type, str):
        raise broken("config.json", f"model_type is {model_type!r}")
    try:
        Tokenizer.from_file(str(path / "tokenizer.json"))
    except Exception as error:  # the library raises plain Exception
        raise broken("tokenizer.json", error) from None
    settings = path / "tokenizer_config.json"
    inline = settings.exists() and "chat_template" in settings.read_text(errors="replace")
    if not inline and not (path / "chat_template.jinja").exists():
        raise broken("tokenizer_config.json", "no chat template: add chat_template.jinja")
    for file in sorted(path.glob("*.safetensors")):
        try:
            with safe_open(file, framework="np") as tensors:
                tensors.keys()
        except (SafetensorError, OSError) as error:
            raise broken(file.name, error) from None


def check_lengths(config: RunConfig, path: Path, config_path: str) -> None:
    """The model's own limit leaves room for a prompt; `model.context_tokens` is checked where it is set. Rows of the
    learner that may need more memory than its budget says are told on stderr."""
    import json
    import sys

    limit = text_settings(json.loads((path / "config.json").read_text())).get("max_position_embeddings")
    if isinstance(limit, int) and 0 < limit <= config.rollout.max_new_tokens:
        raise UsageError(
            f"{config_path}: the model's context (max_position_embeddings = {limit} in {path / 'config.json'}) holds "
            f"prompt and answer: set rollout.max_new_tokens = {config.rollout.max_new_tokens} below it"
        )
    longest = config.model.context_tokens or (limit if isinstance(limit, int) else 0)
    learner = config.learner
    budget = learner.max_tokens_per_rank * (learner.ranks if learner.context_parallel else 1)
    if longest > budget:
        print(
            f"note: a sample may have {longest} tokens (model.context_tokens), and one beyond "
            f"learner.max_tokens_per_rank = {learner.max_tokens_per_rank} is a row of its own: memory must do for that",
            file=sys.stderr,
        )


def text_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """A config.json's fields of the language model: of a multimodal checkpoint they stand in `text_config`, which wins
    over the same fields beside it as it does in transformers."""
    nested = settings.get("text_config")
    return {**settings, **nested} if isinstance(nested, dict) else settings


def check_output(path: str, option: str) -> None:
    """A file that is to be written at the end must be writable now."""
    if path and (Path(path).is_dir() or not Path(path).absolute().parent.is_dir()):
        raise UsageError(f"{option} {path}: wanted a file in a folder that exists")
    if path:
        check_writable(Path(path).absolute().parent, f"{option} {path}")


def check_writable(folder: Path, what: str) -> None:
    """A folder in which files are made later, whole under another name first; where it is not there, what it will be
    made in."""
    import tempfile

    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise UsageError(f"{what}: nothing can be written in {there}: {error.strerror}") from None


def check_run_folder(folder: Path) -> None:
    """The run's folder can be made and written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
    except OSError as error:
        raise UsageError(f"run folder {folder}: {error.strerror}; choose another run.folder") from None


def check_tasks(config: RunConfig) -> None:
    """What tasks.refused = "skip" leaves out is told on stderr."""
    import sys

    from core.tasks.loading import told
    from runners.tasks import tell_left_out

    for side in ("train", "heldout"):
        refused: list[Refused] = []
        tasks_of(config, side, refused)
        if refused:
            print(told(refused, side), file=sys.stderr)
    tell_left_out([source.model_dump() for side in ("train", "heldout") for source in getattr(config.tasks, side)])


def tasks_of(config: RunConfig, side: str, refused: "list[Refused] | None" = None) -> "list[Task]":
    """The tasks of a side, as the run will have them; `refused` takes what tasks.refused = "skip" leaves out."""
    from core.tasks.loading import load_tasks

    skipped = ([] if refused is None else refused) if config.tasks.refused == "skip" else None
    sources = [source.model_dump() for source in getattr(config.tasks, side)]
    return load_tasks(sources, config.tasks.backend, side, skipped)


def check_engine(config: RunConfig) -> None:
    if config.rollout.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise UsageError(
            "rollout.engine = 'vllm', but vllm is not installed here: "
            "make extra-vllm, or set rollout.engine = 'transformers'"
        )


def has_gpu() -> bool:
    """One that may be opened, and that CUDA_VISIBLE_DEVICES does not hide."""
    from core.evaluation.walls.gpu import cards, shown

    return bool(cards() and shown())


def check_judge(config: RunConfig) -> None:
    """Evaluators of another machine may have the GPU that this one lacks."""
    wanted = config.judge.device_class
    if wanted != "cpu" and config.local.evaluators and not has_gpu():
        raise UsageError(
            f"judge.device_class = {wanted!r}, but this machine has no GPU to judge on: set it to 'cpu' and "
            "judge.speed = 'modelled', or local.evaluators = 0 and start evaluators where there is one"
        )


def check_learner(config: RunConfig) -> None:
    """Under `up` the learner is of this machine: what it would die of at every start is said once."""
    learner = config.learner
    if learner.device == "cuda" and not has_gpu():
        raise UsageError("learner.device = 'cuda', but this machine has no GPU: set it to 'auto' or 'cpu'")
    for wanted, setting, module, extra in (
        (learner.quantize == "nf4", "quantize = 'nf4'", "bitsandbytes", "qlora"),  # brings peft as well
        (learner.lora_rank > 0, f"lora_rank = {learner.lora_rank}", "peft", "lora"),
    ):
        if wanted and importlib.util.find_spec(module) is None:
            raise UsageError(f"learner.{setting} needs {module}, which is not installed here: make extra-{extra}")


def check_cards(config: RunConfig) -> None:
    from configs.cards import problem
    from core.evaluation.walls.gpu import shown

    if found := problem(config, len(shown())):
        raise UsageError(found)


def check_weights(config: RunConfig) -> None:
    transport = config.weights.transport
    if transport in ("ipc", "nccl") and not has_gpu():
        raise UsageError(
            f"weights.transport = {transport!r} hands weights over between GPUs, but this machine has none: set "
            f"weights.transport = 'filesystem'"
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
