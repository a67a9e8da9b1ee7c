"""Each level is named for what it is, and what is missing of it is said."""

import json
from pathlib import Path

import msgspec
import pytest

from core.evaluation.walls import landlock, sandbox, seccomp
from core.evaluation.walls import namespaces as walls
from core.evaluation.walls.namespaces import Walls
from runners import doctor

ROOT = Path(__file__).parents[3]
STRONG = Walls(level="namespaces", own_uid=True, landlock_abi=7, seccomp=True)
BASIC = msgspec.structs.replace(STRONG, level="basic")


@pytest.mark.parametrize(
    ("got", "named", "missing", "holds"),
    [
        (STRONG, "namespaces, own uid, seccomp", [], True),
        (Walls(level="namespaces", user_namespace=True, seccomp=True), "namespaces, user namespace, seccomp", [], True),
        (Walls(level="namespaces"), "namespaces", ["no seccomp"], False),
        (BASIC, "basic, own uid, Landlock 7, seccomp", ["no namespaces"], True),
        (
            Walls(level="basic", landlock_abi=1, seccomp=True),
            "basic, Landlock 1, seccomp",
            ["no namespaces", "no user of its own"],
            True,
        ),
        (
            Walls(level="basic", own_uid=True, seccomp=True),
            "basic, own uid, seccomp",
            ["no namespaces", "no Landlock: it can read and write every file that is open to all users"],
            False,
        ),
        (Walls(level="basic", seccomp=True), "basic, seccomp", ["no namespaces", "no Landlock and no user"], False),
        (Walls(level="basic", landlock_abi=4), "basic, Landlock 4", ["no namespaces", "no user", "no seccomp"], False),
    ],
)  # fmt: skip
def test_a_level_is_named_with_what_is_missing(got: Walls, named: str, missing: list[str], holds: bool) -> None:
    assert got.describe() == named
    assert [text.startswith(start) for text, start in zip(got.missing(), missing, strict=True)] == [True] * len(missing)
    assert got.holds is holds


def test_a_probe_finds_what_the_kernel_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    here = walls.probe("basic")
    assert here.level == "basic" and not here.user_namespace
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    monkeypatch.setattr(seccomp, "available", lambda: False)
    bare = walls.probe("basic")
    assert (bare.landlock_abi, bare.seccomp, bare.own_uid) == (0, False, here.own_uid)


def test_doctor_names_the_level_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(doctor.sandbox())
    here = sandbox.probe()
    assert found[0].found == here.describe() and found[0].ok is here.holds
    monkeypatch.setattr(walls, "probe", lambda: Walls(level="basic", landlock_abi=7, seccomp=True))
    weaker = list(doctor.sandbox())
    assert weaker[0].ok is True and "no namespaces" in weaker[1].found
    assert weaker[-1].found == f"for the stronger level: {walls.advice()}"
    monkeypatch.setattr(walls, "probe", lambda: Walls(level="basic", seccomp=True))
    broken = list(doctor.sandbox())
    assert broken[0].ok is False and broken[0].advice == walls.advice()


@pytest.mark.parametrize(
    ("said", "advised"),
    [
        ({"/proc/sys/user/max_user_namespaces": "0"}, "user.max_user_namespaces"),
        ({"/proc/sys/kernel/unprivileged_userns_clone": "0"}, "kernel.unprivileged_userns_clone=1"),
    ],
)
def test_advice_follows_from_what_the_machine_says(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str], advised: str
) -> None:
    monkeypatch.setattr(walls, "_word", lambda path: said.get(path, ""))
    assert advised in walls.advice()


NEEDED = {
    "unshare", "setns", "mount", "umount2", "pivot_root", "clone", "clone3", "fork", "prctl", "seccomp", "capset",
    "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "pidfd_open", "close_range",
    "memfd_create", "setgroups",
    "setresuid", "setresgid", "prlimit64", "setsid", "kill", "tgkill", "wait4", "socketpair", "sendmsg",
}  # fmt: skip
"""What spawn, zygote and sandbox call."""


def test_the_container_profile_allows_what_the_walls_are_made_of() -> None:
    profile = json.loads((ROOT / "docs" / "seccomp-evaluator.json").read_text())
    refused = {name for rule in profile["syscalls"] for name in rule["names"] if rule["action"] != "SCMP_ACT_ALLOW"}
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    assert not refused & NEEDED
    assert {"ptrace", "bpf", "keyctl", "init_module", "kexec_load", "perf_event_open", "userfaultfd"} <= refused
    compose = (ROOT / "docker-compose.yml").read_text()
    evaluator = compose.split("\n  evaluator:\n")[1].split("\n  learner:\n")[0]
    assert 'security_opt: ["seccomp=docs/seccomp-evaluator.json", "apparmor=unconfined"]' in evaluator
    assert "cap_add: [SYS_ADMIN]" in evaluator
