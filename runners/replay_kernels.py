"""`kernelmill replay RUN --kernels` and `--rewards`: verdicts and rewards of a run, anew.

Each kernel (a source of a task) is judged once, however often the run wrote it. Verdicts are in OUT/kernels.jsonl as
they come, so that the next call goes on after a Ctrl-C; a judge with other settings or other code judges all again.
"""

import argparse
import functools
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from runners.pulse import Pulse, lasting
from runners.replay import config_of, named

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from configs.schema import RunConfig
    from core.evaluation.verdict import Verdict
    from core.record.best import Kernel
    from core.record.rejudged import Choice, Score, Which, Written
    from core.record.rejudged_file import KernelFile, Row
    from core.tasks.task import Task

SHOWN = 20
"""Changed kernels that are printed before the rest is only counted."""


def judge(args: argparse.Namespace, folder: Path) -> int:
    from core.record.one_writer import one_writer
    from core.record.rejudged_file import KernelFile
    from runners import interrupts
    from runners.judging_again import tasks_by_id
    from runners.playing import check_cards, check_judge_here

    config = config_of(folder, args.overrides)
    check_cards(config)
    check_judge_here(config)
    choice, written = _read(args, folder)
    out = sys.stderr if args.json else sys.stdout
    if not written.kernels:
        return _nothing(args, folder, choice)
    tasks = tasks_by_id(config, (kernel.task_id for kernel in written.kernels.values()), "replay")
    kernels = {which: kernel for which, kernel in written.kernels.items() if kernel.task_id in tasks}
    judging = Judging(config, kernels, tasks, out)
    with one_writer(args.out, "replay"):
        file = KernelFile(args.out)
        with Pulse(judging.line):
            interrupts.run("replay", judging.all(file), "the judge's workers")
        rows = [judging.rows[which] for which in kernels]
        file.finish(rows)
        told = _told(config, written, rows, judging.judge)
        _write(args.out / "kernels.json", told)
    _say(told, rows, args.out, out)
    if args.json:
        print(json.dumps(told))
    return 1 if any(row.change == "verdict" for row in rows) else 0


def score(args: argparse.Namespace, folder: Path) -> int:
    """Another reward for the verdicts that stand: pure, and nothing is judged."""
    from core.record.one_writer import one_writer
    from core.record.rejudged import figures, rescored

    config = config_of(folder, args.overrides)
    choice, written = _read(args, folder)
    if not written.episodes:
        return _nothing(args, folder, choice)
    points = score_of(config)
    anew = [rescored(episode, points) for episode in written.episodes]
    pairs = [
        pair for was, now in zip(written.episodes, anew, strict=True) for pair in zip(was.turns, now.turns, strict=True)
    ]
    others = [(was.score, now.score) for was, now in pairs if was.score != now.score]
    told: dict[str, Any] = {
        "run": config.run.name,
        "reward": config.reward.model_dump(mode="json"),
        "episodes": len(written.episodes),
        "turns": len(pairs),
        "other_scores": len(others),
        "figures": {"was": figures(written.episodes), "now": figures(anew)},
        "scores": _scores(pairs),
    }
    file = named(args.out, "rewards", args.overrides)
    with one_writer(args.out, "replay"):
        _write(file, told)
    out = sys.stderr if args.json else sys.stdout
    words = f"{len(others)} of {len(pairs)} turns have another score"
    print(f"{words} under reward.shape = {config.reward.shape!r} ({len(written.episodes)} episodes)", file=out)
    for row in told["scores"]:
        print(
            f"  {row['verdict']:24} {_range(row['was']):>16} -> {_range(row['now']):16} {row['turns']} turns", file=out
        )
    _say_figures(told, out)
    print(f"written to {file}", file=out)
    if args.json:
        print(json.dumps(told))
    return 1 if others and not args.overrides else 0


def score_of(config: "RunConfig") -> "Score":
    """The config's reward."""
    from core.evaluation.reward import score

    return functools.partial(score, **config.reward.model_dump())


def _read(args: argparse.Namespace, folder: Path) -> "tuple[Choice, Written]":
    from core.record.rejudged import Choice, read

    choice = Choice(
        tasks=tuple(args.task or ()),
        last=args.last or 0,
        kinds=tuple(args.only or ()),
        sample=args.sample or 0,
        seed=args.seed or 0,
    )
    began = time.monotonic()
    with Pulse(lambda: f"kernelmill replay: reading {folder / 'record'}, {lasting(time.monotonic() - began)}"):
        return choice, read(folder, choice)


def _nothing(args: argparse.Namespace, folder: Path, choice: "Choice") -> int:
    from core.record.record import EPISODES, FILES
    from runners.usage import UsageError

    if not (folder / "record" / FILES[EPISODES]).exists():
        raise UsageError(f"{folder} keeps no archive of its episodes (record/{FILES[EPISODES]}), or none has ended yet")
    asked = [f"--task {pattern}" for pattern in choice.tasks] + [f"--only {kind}" for kind in choice.kinds]
    raise UsageError(f"{folder}: no kernel of {' '.join(asked) or 'any episode'} was judged: choose others")


class Judging:
    """All chosen kernels on their way through the judge."""

    def __init__(
        self, config: "RunConfig", kernels: "dict[Which, Kernel]", tasks: "dict[str, Task]", out: TextIO
    ) -> None:
        self.rows: dict[Which, Row] = {}
        self.judge: dict[str, Any] = {}
        self._config, self._kernels, self._tasks, self._out = config, kernels, tasks, out
        self._score = score_of(config)
        self._started, self._began = time.monotonic(), 0.0
        self._stood = 0

    def line(self) -> str:
        now = time.monotonic()
        if not self._began:
            return f"kernelmill replay: starting the judge, for {lasting(now - self._started)}"
        done, total, ran_s = len(self.rows), len(self._kernels), now - self._began
        judged = done - self._stood
        left = f", about {lasting(ran_s / judged * (total - done))} left" if judged else ""
        changed = sum(row.change == "verdict" for row in self.rows.values())
        return f"kernelmill replay: {done} of {total} kernels, {changed} with another verdict, {lasting(ran_s)}{left}"

    async def all(self, file: "KernelFile") -> None:
        from core.identity import digest_json
        from core.record.rejudged_file import row_of
        from runners.judging_again import judge_each, judge_of
        from runners.playing import key_of, pool_of

        pool = pool_of(self._config)
        keys = {w: key_of(self._config, self._tasks[k.task_id], k.source) for w, k in self._kernels.items()}

        def take_over() -> None:
            """What an earlier call judged with the same judge."""
            self.judge = judge_of(pool)
            self.name = digest_json(self.judge, size=4)
            for which, kernel in self._kernels.items():
                if (row := file.standing(which, judge=self.name, key=keys[which])) is not None:
                    self._add(row_of(kernel, row.now, judge=self.name, key=row.key, score=self._score))
            self._stood = len(self.rows)

        def judged(which: "Which", verdict: "Verdict") -> None:
            row = row_of(self._kernels[which], verdict, judge=self.name, key=keys[which], score=self._score)
            file.add(row)
            self._add(row)

        try:
            if not pool.settings.on_gpu:  # which GPU it is, the pool's workers see
                take_over()
            if len(self.rows) < len(self._kernels):
                await pool.start()
                take_over()
            self._began = time.monotonic()
            if self._stood:
                print(f"{self._stood} of {len(self._kernels)} kernels stand from an earlier call", file=self._out)
            left = {which: kernel for which, kernel in self._kernels.items() if which not in self.rows}
            jobs = [(which, self._tasks[kernel.task_id], kernel.source, keys[which]) for which, kernel in left.items()]
            await judge_each(pool, jobs, judged)
        finally:
            await pool.stop()

    def _add(self, row: "Row") -> None:
        self.rows[row.which] = row


def _told(config: "RunConfig", written: "Written", rows: "Sequence[Row]", judge: dict[str, Any]) -> dict[str, Any]:
    from core.record.rejudged import figures, rescored
    from core.record.rejudged_file import counts

    verdicts = {row.which: row.now for row in rows}
    anew = [rescored(episode, score_of(config), verdicts) for episode in written.episodes]
    pairs = [{"was": was, "now": now, "kernels": number, "turns": turns} for (was, now), (number, turns) in
             counts(rows).items()]  # fmt: skip
    changes: dict[str, int] = {}
    for row in rows:
        changes[row.change] = changes.get(row.change, 0) + 1
    return {
        "run": config.run.name,
        "judge": judge,
        "reward": config.reward.model_dump(mode="json"),
        "episodes": len(written.episodes),
        "kernels": len(rows),
        "changes": changes,
        "paid_wrongly": _count(rows, "pass", "fail"),
        "refused_wrongly": _count(rows, "fail", "pass"),
        "verdicts": pairs,
        "figures": {"was": figures(written.episodes), "now": figures(anew)},
        "changed": [_short(row) for row in rows if row.change in ("verdict", "reason", "speed")],
    }


def _count(rows: "Iterable[Row]", was: str, now: str) -> dict[str, int]:
    found = [row for row in rows if row.change == "verdict" and (row.was.kind, row.now.kind) == (was, now)]
    return {"kernels": len(found), "turns": sum(row.times for row in found)}


def _short(row: "Row") -> dict[str, Any]:
    from core.record.rejudged_file import in_words

    return {
        "task_id": row.task_id, "kernel": row.kernel, "change": row.change, "was": in_words(row.was),
        "now": in_words(row.now), "score_was": row.score_was, "score_now": row.score_now,
        "speedup_was": row.was.speedup, "speedup_now": row.now.speedup, "episode": row.episode, "turn": row.turn,
        "times": row.times, "why": row.now.feedback.strip().partition("\n")[0][:200],
    }  # fmt: skip


def _say(told: dict[str, Any], rows: "Sequence[Row]", folder: Path, out: TextIO) -> None:
    from runners.live import clean

    turns = sum(row.times for row in rows)
    print(f"{len(rows)} different kernels judged again, of {turns} turns in {told['episodes']} episodes", file=out)
    width = max(len(pair["was"]) for pair in told["verdicts"])
    for pair in told["verdicts"]:
        mark = " " if pair["was"] == pair["now"] else "*"
        line = f"{mark} {pair['was']:{width}} -> {pair['now']:26} {pair['kernels']:6} kernels {pair['turns']:6} turns"
        print(line, file=out)
    for name, words in (("paid_wrongly", "passed then, fail now: rewards paid wrongly"),
                        ("refused_wrongly", "failed then, pass now: good kernels refused")):  # fmt: skip
        print(f"{told[name]['kernels']} kernels ({told[name]['turns']} turns) {words}", file=out)
    rest = [
        f"{told['changes'][change]} {words}"
        for change, words in (
            ("reason", "fail for another reason"),
            ("speed", "pass with another speed"),
            ("first", "had met trouble on our side then"),
            ("unjudged", "not judged for trouble on our side: call this again"),
        )
        if change in told["changes"]
    ]
    if rest:
        print("; ".join(rest), file=out)
    _say_figures(told, out)
    changed = [row for row in told["changed"] if row["change"] == "verdict"]
    for row in changed[:SHOWN]:
        print(clean(_line(row)), file=out)
    if len(changed) > SHOWN:
        print(f"... and {len(changed) - SHOWN} more", file=out)
    print(f"written to {folder / 'kernels.jsonl'} (a line for each kernel) and kernels.json", file=out)


def _line(row: dict[str, Any]) -> str:
    often = "once" if row["times"] == 1 else f"{row['times']} times"
    where = f"episode {row['episode']}, turn {row['turn'] + 1}, written {often}"
    points = f"{_number(row['score_was'])} -> {_number(row['score_now'])}"
    why = f": {row['why']}" if row["why"] else ""
    return f"{row['task_id']}  {row['was']} -> {row['now']}, score {points} ({where}){why}"


def _say_figures(told: dict[str, Any], out: TextIO) -> None:
    was, now = told["figures"]["was"], told["figures"]["now"]
    for name in {**was, **now}:
        print(f"{name:20} {_number(was.get(name)):>8} -> {_number(now.get(name))}", file=out)


def _scores(pairs: "Iterable[tuple[Any, Any]]") -> list[dict[str, Any]]:
    """For each verdict in words: the lowest and the highest score, then and now."""
    from core.record.rejudged_file import in_words

    found: dict[str, list[tuple[float | None, float | None]]] = {}
    for was, now in pairs:
        if was.verdict is not None:
            found.setdefault(in_words(was.verdict), []).append((was.score, now.score))
    rows = []
    for verdict, scores in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        sides = [[score for one in scores if (score := one[side]) is not None] for side in (0, 1)]
        was, now = ([min(side), max(side)] if side else None for side in sides)
        rows.append({"verdict": verdict, "turns": len(scores), "was": was, "now": now})
    return rows


def _range(scores: list[float] | None) -> str:
    if scores is None:
        return "no score"
    low, high = map(_number, scores)
    return low if low == high else f"{low} to {high}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _write(path: Path, told: dict[str, Any]) -> None:
    from core.record import files

    files.replace(path, json.dumps(told, indent=1).encode() + b"\n")
