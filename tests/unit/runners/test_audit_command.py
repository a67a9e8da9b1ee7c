import argparse
import json

import pytest

from core.tasks.format import TaskError
from runners import audit
from runners.usage import UsageError

SOURCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {body}
def get_inputs():
    return [torch.randn(4, 8)]
def get_init_inputs():
    return []
"""


def run(*words):
    parser = argparse.ArgumentParser(prog="kernelmill")
    audit.add_parser(parser.add_subparsers())
    args = parser.parse_args(["audit", *map(str, words)])
    return args.run(args)


@pytest.fixture
def folder(tmp_path):
    for level, body in ((1, "x + 1"), (2, "x * 0")):
        (tmp_path / f"level{level}").mkdir()
        (tmp_path / f"level{level}" / "1_T.py").write_text(SOURCE.format(body=body))
    (tmp_path / "level1" / "2_Bad.py").write_text("x = 1")
    return tmp_path


def test_rows_refusals_and_counts(folder, tmp_path, capsys):
    kept = tmp_path / "kept.jsonl"
    assert run(folder, "--keep", kept) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].split()[1] == "sound"
    assert out[1].split()[1] == "degenerate"
    assert "accepts zeros, constant, stale" in out[1]
    assert out[2].startswith("refused: ")
    assert out[3] == "2 tasks: 1 sound, 1 degenerate, 0 noise, 0 unknown"
    before = kept.read_bytes()
    assert run(folder, "--level", 1, "--keep", kept) == 0
    assert kept.read_bytes() == before
    assert len(capsys.readouterr().out.splitlines()) == len(out) - 1
    # Nothing but the table is on stdout.
    assert run(folder, "--json", "--limit", 1, "--keep", kept) == 0
    table = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in table["tasks"]] == ["sound"]
    assert len(table["refused"]) == 1
    assert table["counts"]["ours"]["any"] == 0


def test_bad_options_and_sources(folder):
    with pytest.raises(UsageError, match="--wall 0, --memory 4096"):
        run(folder, "--wall", 0)
    with pytest.raises(TaskError, match="wanted starter"):
        run("nowhere")
    with pytest.raises(TaskError, match="none of its 2 tasks has level 4; it has levels 1, 2"):
        run(folder, "--level", 4)
