"""Zygotes of one judge are forked from one process that has imported torch, and each ends by itself."""

import asyncio
import os
import signal

import psutil
import pytest
from right_answer import TASK, candidate

from core.evaluation import nursery
from core.evaluation.pool import JudgePool
from core.evaluation.settings import JudgeSettings
from core.evaluation.spawn import Zygote, ZygoteError
from core.evaluation.walls import sandbox

DEADLINE_S = 200.0


@pytest.fixture
def zygotes():
    found = [Zygote(kind, sandbox.probe(), 99) for kind in ("interpret", "compile")]
    for zygote in found:
        zygote.start()
    yield found
    for zygote in found:
        zygote.stop()


def test_one_that_is_killed_is_started_again_beside_its_siblings(zygotes):
    first, second = zygotes
    for zygote in zygotes:
        zygote.wait_ready(DEADLINE_S)
    parent = psutil.Process(first.pid).ppid()
    assert psutil.Process(second.pid).ppid() == parent and psutil.Process(parent).ppid() == os.getpid()
    assert len({os.getsid(pid) for pid in (first.pid, second.pid, parent)}) == 3
    gone = first._process
    os.kill(first.pid, signal.SIGKILL)
    assert gone.wait(DEADLINE_S) == -signal.SIGKILL
    first.stop()
    first.start()
    first.wait_ready(DEADLINE_S)
    assert first.pid != gone.pid and psutil.Process(first.pid).ppid() == parent
    assert psutil.pid_exists(second.pid)


def test_a_nursery_that_is_gone_takes_its_zygotes_along_and_is_replaced(zygotes):
    for zygote in zygotes:
        zygote.wait_ready(DEADLINE_S)
    before = [zygote.pid for zygote in zygotes]
    parent = psutil.Process(before[0]).ppid()
    gone = next(one for one in nursery._nurseries.values() if one._process.pid == parent)
    os.kill(parent, signal.SIGKILL)
    for zygote in zygotes:
        assert zygote._process.wait(DEADLINE_S) == -signal.SIGKILL
        zygote.stop()
        zygote.start()
    for zygote in zygotes:
        zygote.wait_ready(DEADLINE_S)
        assert zygote.pid not in before and psutil.Process(zygote.pid).ppid() != parent
    assert gone._handle == -1 and gone._process.returncode is not None, "neither a descriptor nor a zombie stays"


def test_what_can_not_be_imported_is_told_of_each_zygote(monkeypatch, capfd, tmp_path):
    """The nursery's last words are in the log; a zygote of it does not start and nobody waits."""
    (tmp_path / "site-packages" / "torch").mkdir(parents=True)
    (tmp_path / "site-packages" / "torch" / "__init__.py").write_text("raise ImportError('no such library')")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    os.chmod(tmp_path, 0o755)
    zygote = Zygote("compile", sandbox.probe(), 99)
    zygote.start()
    with pytest.raises(ZygoteError, match="ended while it started"):
        zygote.wait_ready(DEADLINE_S)
    zygote.stop()
    assert "no such library" in capfd.readouterr().err


def test_a_fork_of_the_owner_does_not_keep_it(zygotes):
    """It has no nursery of its own yet, and its parent's ends with the parent, not with it."""
    zygotes[0].wait_ready(DEADLINE_S)
    orders = next(one._orders.fileno() for one in nursery._nurseries.values() if one.running)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.fstat(orders)
            os.write(write, b"open")
        except OSError:
            os.write(write, b"shut" if not nursery._nurseries else b"kept")
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    assert os.read(read, 8) == b"shut"
    os.close(read)


def test_workers_of_a_pool_share_what_they_are_forked_from():
    async def main():
        pool = JudgePool(JudgeSettings(speed="none"), workers=2)
        await pool.start()
        try:
            pids = [one._process.pid for one in pool._workers]
            (parent,) = {psutil.Process(pid).parent() for pid in pids}
            (zygotes,) = set(parent.children()) - {psutil.Process(pid) for pid in pids}
            before = {child.pid for child in zygotes.children()}
            assert len(before) == 2
            os.kill(pids[0], signal.SIGKILL)
            verdicts = await asyncio.gather(*(pool.judge(TASK, candidate(), "k") for _ in range(4)))
            assert [verdict.kind for verdict in verdicts] == ["pass"] * 4
            assert psutil.Process(pool._workers[0]._process.pid).parent() == parent
            # What the dead one had is gone as well, and the new one's stands beside the other's.
            assert len({child.pid for child in zygotes.children()} - before) == 1 and len(zygotes.children()) == 2
            parent.kill()
            assert (await pool.judge(TASK, candidate(), "k")).kind == "pass"
        finally:
            await pool.stop()
        assert not psutil.wait_procs([parent, zygotes], 60)[1]

    asyncio.run(main())
