"""`kernelmill replay RUN --learner`: the run's learner again, from its record of steps and episodes.

The groups of each step are those of the chain, in its order; what becomes of them is the learner's own code
(`actors.learner_parts`, `core.training`). Settings are the run's at the moment of each step; from --from on with the
overrides.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from runners.pulse import Pulse, lasting
from runners.replay import named
from runners.usage import UsageError

if TYPE_CHECKING:
    from configs.schema import RunConfig
    from core.flow.collector import Group
    from core.record.reading import StepRow
    from core.record.retrained import Plan
    from core.training.settings import TrainerSettings
    from runners.replay_settings import Settings

COLUMNS = ("loss", "kl", "kl_behaviour", "entropy", "grad_norm", "clip_share")
"""Of the table, where they are not 0 in all steps; the file has all figures."""
WIDE, NARROW = 20, 12
"""Of its columns."""
SAVED_EVERY_S = 5.0


def run(args: argparse.Namespace, folder: Path) -> int:
    from core.record.one_writer import one_writer
    from core.record.retrained import plan_of
    from runners import interrupts
    from runners.preflight import check_learner
    from runners.replay_settings import Settings

    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of every second that one rank waits for another
    settings = Settings(folder, args.overrides)
    _check_policy(settings.config, folder)
    began = time.monotonic()
    with Pulse(lambda: f"kernelmill replay: reading {folder / 'record'}, {lasting(time.monotonic() - began)}"):
        plan = plan_of(folder, args.first, args.last_step)
        settings.overridden_from = plan.first
        check_learner(settings.of(plan.rows[-1]))
    for line in [*plan.told, *settings.told]:
        interrupts.say(f"kernelmill replay: {line}")
    replay = Replay(
        folder, plan, settings, named(args.out, "learner", settings.overrides), sys.stderr if args.json else sys.stdout
    )
    with one_writer(args.out, "replay"), Pulse(replay.line), interrupts.stop_or_end("replay", replay.stop):
        replay.run()
    if args.json:
        print(json.dumps(replay.told()))
    if replay.stopping:
        return interrupts.INTERRUPTED
    return 0 if replay.same or settings.overrides else 1


def _check_policy(config: "RunConfig", folder: Path) -> None:
    """The learner wants no tokenizer. Raises UsageError."""
    if not Path(config.model.path).is_dir() and not config.model.revision:
        raise UsageError(
            f"{folder / 'config.json'}: model.path = {config.model.path!r}: there is no such folder (looked in "
            f"{Path.cwd()}): say where the policy that the run started from is now by model.path=FOLDER"
        )


class Replay:
    """All steps of a plan, trained again."""

    def __init__(self, folder: Path, plan: "Plan", settings: "Settings", file: Path, out: TextIO) -> None:
        from core.record.retrained import fingerprints
        from core.run_folder import RunFolder
        from core.weights.filesystem import run_root

        self._folder, self._plan, self._settings, self._file = folder, plan, settings, file
        self._table = Table(out, plan.rows, wide=bool(settings.overrides))
        self._out = out
        config = settings.config
        self._fingerprints = fingerprints(
            folder, run_root(config.weights.folder, config.run.name, RunFolder(folder).weights)
        )
        self._ranks: Any = None
        self._trained_with: TrainerSettings | None = None
        self._started = self._saved = time.monotonic()
        self._at = plan.start.step
        self.start_same: bool | None = None
        """Whether the policy that training starts from is the run's; None where that is not known."""
        self.steps: list[dict[str, Any]] = []
        self.stopping = False

    def stop(self) -> None:
        from runners.interrupts import say

        self.stopping = True
        say("kernelmill replay: interrupted: stopping after this step; Ctrl-C again ends it now")

    def line(self) -> str:
        last = self._plan.rows[-1].step
        return f"kernelmill replay: at step {self._at} of {last}, {lasting(time.monotonic() - self._started)}"

    @property
    def same(self) -> bool:
        """All that can be compared is as it was."""
        return self.start_same is not False and all(step["same"] for step in self.steps)

    def run(self) -> None:
        from core.record.retrained import batches

        rows, first = self._plan.rows, self._plan.first
        asked = _span(first, rows[-1].step)
        overrides = f" with {' '.join(self._settings.overrides)}" if self._settings.overrides else ""
        way = f" ({_span(rows[0].step, first - 1)} on the way)" if rows[0].step < first else ""
        print(f"{asked}{overrides}, from {self._plan.start}{way}", file=self._out, flush=True)
        try:
            for row, groups in batches(self._folder, rows):
                self._step(row, groups)
                if self.stopping:
                    break
        finally:
            if self._ranks is not None:
                self._ranks.close()
        self._save()
        self._table.legend()
        self._conclude()

    # -- one step ----------------------------------------------------------------------------------------------------

    def _step(self, row: "StepRow", groups: "list[Group]") -> None:
        from actors.learner_parts import intake, step_figures
        from core.record.retrained import compared, other_figures

        config = self._settings.of(row)
        self._train_with(config, row.step)
        taken = intake(config, self._scored(groups, config), self._ranks.version, self._ranks.prepare)
        numbers = {"applied": 0.0} if taken.batch is None else self._ranks.step(taken.batch)
        self._at = row.step
        figures = numbers | step_figures(config, taken)
        others = other_figures(figures, row.metrics)
        as_in_the_run = row.step < self._settings.overridden_from or not self._settings.overrides
        whole = self._checkpoint_same(row) if as_in_the_run else None
        weights = self._fingerprint()
        was = self._fingerprints.get((row.incarnation, row.version))
        accounts = [[(o.group_id, o.trained, o.rejected) for o in side] for side in (taken.outcomes, row.groups)]
        step = {
            "step": row.step,
            "applied": bool(numbers["applied"]),
            "weights": {"now": weights, "was": was, "same": None if was is None else weights == was},
            "checkpoint_same": whole,
            "outcomes_same": accounts[0] == accounts[1],
            "figures": {name: {"now": value, "was": row.metrics.get(name)} for name, value in figures.items()},
            "compared": compared(figures, row.metrics),
            "others": sorted(others),
        }
        step["same"] = was in (None, weights) and whole is not False and step["outcomes_same"] and not others
        self.steps.append(step)
        self._table.row(step)
        if time.monotonic() - self._saved > SAVED_EVERY_S:
            self._save()

    def _train_with(self, config: "RunConfig", step: int) -> None:
        """Have a trainer of these settings that goes on from the weights of the step before."""
        from actors.learner_parts import trainer_settings
        from core.training.ranks import RankGroup

        try:
            wanted = trainer_settings(config)
            if wanted == self._trained_with:
                return
            begins = self._ranks is None
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._file.parent, prefix=".between-") as folder:
                before = self._plan.start.checkpoint if begins else self._ranks.save(folder)
                if self._ranks is not None:
                    self._ranks.close()
                self._ranks = RankGroup(wanted, resume=before)
        except ValueError as error:  # settings that go with each other no more, or with the checkpoint
            raise UsageError(f"step {step} can't be trained with these settings: {error}") from None
        self._trained_with = wanted
        if begins:
            self._look_at_start()

    def _look_at_start(self) -> None:
        start = self._plan.start
        known = {found for (_, version), found in self._fingerprints.items() if version == start.step}
        if start.checkpoint is None and known:
            self.start_same = self._fingerprint() in known
            if not self.start_same:
                words = f"{self._trained_with.model} has other weights" if self._trained_with else "other weights"
                print(f"{words} than the policy that the run started from: no step can be the same", file=self._out)

    def _scored(self, groups: "list[Group]", config: "RunConfig") -> "list[Group]":
        """With the rewards that overrides ask for; else those that the run gave stand, whoever gave them."""
        import msgspec

        from core.record.rejudged import rescored
        from runners.replay_kernels import score_of

        if config.reward == self._settings.reward:
            return groups
        score = score_of(config)
        return [
            msgspec.structs.replace(group, episodes={i: rescored(one, score) for i, one in group.episodes.items()})
            for group in groups
        ]

    def _fingerprint(self) -> str:
        return self._ranks.take_weights().fingerprint()

    def _checkpoint_same(self, row: "StepRow") -> bool | None:
        """Whether every number of weights and optimizer is that of the run's checkpoint of this step; None where none
        is kept, or it is damaged."""
        from core.checkpoints import store
        from core.run_folder import RunFolder

        path = store.step_folder(RunFolder(self._folder).checkpoints, row.step)
        try:
            store.verify(path)
            if store.read_extra(path).incarnation != row.incarnation:
                return None
        except store.Damaged:
            return None
        return self._ranks.take_checkpoint().equals(path)

    # -- what is said ------------------------------------------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        """Plain data: what the file holds."""
        import torch

        return {
            "run": self._settings.config.run.name,
            "overrides": self._settings.overrides,
            "from": self._plan.first,
            "to": self._plan.rows[-1].step,
            "start": {"step": self._plan.start.step, "of": str(self._plan.start), "same": self.start_same},
            "machine": {"torch": torch.__version__, "threads": torch.get_num_threads(), "told": self._settings.told},
            "same": self.same,
            "steps": self.steps,
        }

    def _save(self) -> None:
        from core.record import files

        self._saved = time.monotonic()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        files.replace(self._file, json.dumps(self.told(), indent=1).encode() + b"\n")

    def _conclude(self) -> None:
        steps = [step for step in self.steps if step["step"] >= self._plan.first]
        others = [step for step in self.steps if not step["same"]]
        if self._settings.overrides:
            print("mean of these steps, in the run -> now", file=self._out)
            for name, (now, was) in _means(steps).items():
                print(f"  {name:14} {was:.4g} -> {now:.4g}", file=self._out)
        elif others:
            told = f"{len(others)} of {len(self.steps)} steps are not the run's, to the last bit"
            print(f"{told}; the first is step {others[0]['step']}: {_why(others[0])}", file=self._out)
        elif steps:
            known = sum(step["weights"]["same"] is True for step in self.steps)
            whole = sum(step["checkpoint_same"] is True for step in self.steps)
            what = [_count(known, "fingerprint of weights", "fingerprints of weights"), _count(whole, "checkpoint")]
            told = f"{_count(len(self.steps), 'step')} as in the run, to the last bit: {', '.join(what)}"
            print(f"{told}, {sum(step['compared'] for step in self.steps)} figures", file=self._out)
        print(f"written to {self._file}", file=self._out)


def _span(first: int, last: int) -> str:
    return f"steps {first} to {last}" if last > first else f"step {first}"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def _why(step: dict[str, Any]) -> str:
    if not step["outcomes_same"]:
        return "other episodes were trained on"
    if step["weights"]["same"] is False or step["checkpoint_same"] is False:
        more = f", {len(step['others'])} of {step['compared']} figures too" if step["others"] else ""
        return f"other weights{more}"
    return f"{len(step['others'])} of {step['compared']} figures, e.g. {step['others'][0]}"


def _means(steps: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """name -> (mean now, mean in the run) of the table's columns, over steps that have both."""
    means = {}
    for name in (*COLUMNS, "reward/mean"):
        pairs = [step["figures"][name] for step in steps if name in step["figures"]]
        both = [(one["now"], one["was"]) for one in pairs if one["was"] is not None]
        if both and any(now or was for now, was in both):
            means[name] = (math.fsum(now for now, _ in both) / len(both), math.fsum(was for _, was in both) / len(both))
    return means


class Table:
    """A line for each step, replayed beside recorded."""

    def __init__(self, out: TextIO, rows: "list[StepRow]", *, wide: bool) -> None:
        """wide: figures will be others than the run's."""
        self._out = out
        self._width = WIDE if wide else NARROW
        self._columns = [name for name in COLUMNS if any(row.metrics.get(name) for row in rows)]
        self._rows = 0

    def row(self, step: dict[str, Any]) -> None:
        if not self._rows:
            self._line("step", "weights", "figures", self._columns)
        self._rows += 1
        figures = "same" if not step["others"] else f"{len(step['others'])} of {step['compared']} other"
        self._line(str(step["step"]), _weights(step), figures, [_cell(step["figures"].get(n)) for n in self._columns])

    def _line(self, step: str, weights: str, figures: str, cells: list[str]) -> None:
        line = f"{step:>5}  {weights:9} {figures:15} " + " ".join(f"{cell:{self._width}}" for cell in cells)
        print(line.rstrip(), file=self._out, flush=True)

    def legend(self) -> None:
        if self._rows:
            print("(weights: all of them and the optimizer's, where a checkpoint is kept; else by fingerprint;"
                  " in brackets: the run's figures)", file=self._out)  # fmt: skip


def _weights(step: dict[str, Any]) -> str:
    if not step["applied"]:
        return "refused"
    if step["checkpoint_same"] is not None:
        return "all same" if step["checkpoint_same"] else "other"
    return {True: "same", False: "other", None: "unknown"}[step["weights"]["same"]]


def _cell(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return "none"
    now, was = figure["now"], figure["was"]
    if was is None or now == was:
        return f"{now:.4g}"
    apart = abs(now - was) / max(abs(now), abs(was))
    return f"{now:.4g} ({was:.4g})" if apart > 1e-3 else f"{now:.4g} ({apart:.0e} off)"
