"""One rank of several that train steps whose long samples lie on all of them: `... context_worker RANK WORLD FOLDER`.

FOLDER holds `jobs.json`, [[name, settings, seed, lengths, prompt], ...], and a file store; rank 0 writes `answers.pt`:
{name: (metrics, gradients)}.
"""

import json
import sys
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from core.training.settings import TrainerSettings
from core.training.trainer import Trainer
from tests.unit.training.rank_worker import leave, step
from tests.unit.training.recipes import shift
from tests.unit.training.test_context import long_samples


def main(rank: int, world: int, folder: Path) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), world), rank=rank, world_size=world)
    answers = {}
    for name, fields, seed, lengths, prompt in json.loads((folder / "jobs.json").read_text()):
        trainer = Trainer(msgspec.convert(fields, TrainerSettings), rank, world)
        shift(trainer, norm=1.0)
        answers[name] = step(trainer, long_samples(lengths, seed, prompt))
    if rank == 0:
        torch.save(answers, folder / "answers.pt")
    leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
