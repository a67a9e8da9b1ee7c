"""Where everything of a run lies: one folder, the same names for every actor and every reader.

runs/demo/
  config.json           resolved config
  run.json              how to reach the bus (mode 0600: it holds the token)
  nats/                 the embedded broker's config and store
  logs/                 one JSON-lines file per actor
  weights/v000012/      policies on their way to the generators
  checkpoints/          step-000010 (committed), step-000020.written (not yet verified)
  episodes/             episodes that are too large for the bus, until the record has them
  record/               facts, steps, episodes, metrics: what reports, the ledger and replay read
  audit.jsonl           which tasks would pay for computing nothing
  report.html
  best/                 the best kernel of each task, judged again (`kernelmill best`)
  replay/               what `kernelmill replay` found
"""

import json
from pathlib import Path
from typing import Any

from core import plain_files
from core.record.files import RecordError
from core.shown import shown

MAX_BYTES = 4 << 20
"""Of a config."""
WHAT_TO_DO = "put it back from a copy, or remove it: `kernelmill up` with the run's recipe writes it anew"


class RunFolder:
    """Paths of one run; makes no folder by itself."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def bus(self) -> Path:
        return self.root / "run.json"

    @property
    def nats(self) -> Path:
        return self.root / "nats"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def weights(self) -> Path:
        return self.root / "weights"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def episodes(self) -> Path:
        return self.root / "episodes"

    @property
    def record(self) -> Path:
        return self.root / "record"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def audits(self) -> Path:
        return self.root / "audit.jsonl"

    def log_file(self, actor: str) -> Path:
        return self.logs / f"{actor}.jsonl"


def read_config(path: str | Path) -> dict[str, Any]:
    """A run's config.json as it stands there: sections by name. Raises RecordError, in one line with what to do, when
    that is not what stands there, and FileNotFoundError when nothing does: a run that never got so far has none.

    One of an older version may have other keys. Who wants a config that is valid today asks `configs.load`.
    """
    found = read_object(path)
    for name, section in found.items():
        if not isinstance(section, dict):
            got = type(section).__name__
            raise RecordError(f"{path}: not a config: wanted a section {name}, got {got}; {WHAT_TO_DO}")
    return found


def read_object(path: str | Path) -> dict[str, Any]:
    """The JSON object in a config's file, whosever it is; errors as above."""
    mend = f"; {WHAT_TO_DO}" if Path(path).name == "config.json" else ""
    try:
        found = json.loads(plain_files.read(Path(path), str(path), MAX_BYTES))
    except plain_files.NotPlain as error:
        if not Path(path).exists():
            raise FileNotFoundError(path) from None
        raise RecordError(f"{error}{mend}") from None
    except (ValueError, RecursionError) as error:  # ValueError: of JSON or UTF-8
        raise RecordError(f"{path}: not valid JSON: {error}{mend}") from None
    if not isinstance(found, dict):
        raise RecordError(f"{path}: not a config: wanted a JSON object, got {shown(found, 60)}{mend}")
    return found
