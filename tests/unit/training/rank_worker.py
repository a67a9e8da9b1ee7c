"""One of two ranks that train one step of every given recipe: `python -m tests.unit.training.rank_worker RANK FOLDER`.

FOLDER holds `jobs.json`, [[name, settings], ...], and a file store; rank 0 writes `answers.pt`: {name: (metrics,
gradients)}. One pair of processes for all recipes, since most of a process's time is its start.
"""

import json
import os
import sys
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from core.training.model import gather
from core.training.settings import TrainerSettings
from core.training.trainer import Trainer
from tests.unit.training.recipes import batch, shift


def step(trainer, samples):
    """(metrics, whole gradients) of a step whose update is not applied."""
    caught = {}

    def keep(grad_norm):
        caught.update({name: gather(p.grad).clone() for name, p in trainer.model.named_masters()})
        trainer.version += 1

    trainer._update = keep
    return trainer.step(samples), caught


def leave() -> None:
    """Both ranks at once, and without the interpreter's own end: gloo's threads may outlive the group, and one that is
    still there when its object goes ends the process with an abort, after all was done."""
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    answers = {}
    for name, fields in json.loads((folder / "jobs.json").read_text()):
        settings = msgspec.convert(fields, TrainerSettings)
        trainer = Trainer(settings, rank, 2)
        shift(trainer, norm=1.0)
        answers[name] = step(trainer, batch(settings.credit))
    if rank == 0:
        torch.save(answers, folder / "answers.pt")
    leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
