"""The corpus' workers without a GPU: every file has its answer, whatever it does, and no worker is left."""

from gpu_corpus import files, judge

NAMES = ("plain", "c1_zeros", "f1_exits_with_success")


def test_every_file_is_answered():
    paths = [path for path in files() if path.stem in NAMES]
    answers = judge(paths, 2, timed=False, device="cpu")
    assert [answer["file"] for answer in answers] == [
        "honest/plain",
        "refused/c1_zeros",
        "refused/f1_exits_with_success",
    ]
    assert {answer["kind"] for answer in answers} == {"fail"}  # no Triton kernel is launched on a CPU
