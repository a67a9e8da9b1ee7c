"""Where everything of a run lies: one folder, the same names for every actor and every reader.

runs/demo/
  config.json           resolved config
  run.json              how to reach the bus (mode 0600: it holds the token)
  nats/                 the embedded broker's config and store
  logs/                 one JSON-lines file per actor
  weights/v000012/      policies on their way to the generators
  checkpoints/          step-000010 (committed), step-000020.written (not yet verified)
  record/               facts, steps, episodes, metrics: what reports, the ledger and replay read
  audit.jsonl           which tasks would pay for computing nothing
  report.html
"""

from pathlib import Path


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
