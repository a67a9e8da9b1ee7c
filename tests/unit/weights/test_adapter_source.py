"""Adapters as a source: the engine's sum is the learner's bit for bit, and proven by the whole policy's fingerprint."""

import pytest
import torch
from safetensors.torch import save_file

from core.weights import adapters, filesystem
from core.weights.adapters import Part, merged
from core.weights.fingerprint import fingerprint
from core.weights.incoming import receive
from core.weights.outgoing import Outgoing
from core.weights.shards import write_tensors

CPU = torch.device("cpu")
SHAPES = {
    "embed.weight": (50, 24),
    "q_proj.weight": (40, 24),
    "down_proj.weight": (24, 6000),
    "up_proj.weight": (6000, 24),
    "norm.weight": (24,),
}
ADAPTED = ("q_proj.weight", "down_proj.weight", "up_proj.weight")


def base(dtype=torch.bfloat16, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=draw).to(dtype) for name, shape in SHAPES.items()}


def parts(seed=1, rank=16):
    draw = torch.Generator().manual_seed(seed)
    return [
        Part(
            name,
            torch.randn(rank, SHAPES[name][1], generator=draw),
            torch.randn(SHAPES[name][0], rank, generator=draw),
            2.0,
        )
        for name in ADAPTED
    ]


def policy(weights, added, dtype=torch.bfloat16):
    by_name = {part.name: part for part in added}
    return [(n, merged(w, by_name[n], dtype) if n in by_name else w.to(dtype)) for n, w in weights.items()]


@pytest.fixture
def folder(tmp_path):
    """A model's folder; its file has the tied head too, as some do."""
    made = tmp_path / "model"
    made.mkdir()
    weights = base()
    write_tensors(made, [*weights.items(), ("lm_head.weight", weights["embed.weight"].clone())])
    return made


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_order_of_sums_changes_no_bit(dtype):
    """float32 sums in another order differ in the last bits, and now and then across a rounding; these don't."""
    weights = base(torch.float32)
    for part in parts(rank=64):
        order = torch.randperm(64, generator=torch.Generator().manual_seed(3))
        turned = Part(part.name, part.a[order].contiguous(), part.b[:, order].contiguous(), part.scale)
        one, other = merged(weights[part.name], part, dtype), merged(weights[part.name], turned, dtype)
        assert one.dtype == dtype and torch.equal(one, other)
        plain = weights[part.name].to(dtype).double() + 2.0 * part.b.double() @ part.a.double()
        torch.testing.assert_close(one.double(), plain, atol=0, rtol=2.0**-8 if dtype == torch.bfloat16 else 2.0**-23)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_received_has_the_fingerprint_that_was_published(folder, tmp_path, dtype):
    outgoing = Outgoing("adapter", device=CPU)
    for version in (4, 5):
        whole = policy(base(), parts(seed=version), dtype)
        manifest = outgoing.publish(tmp_path / "out", version, whole, parts=parts(seed=version))
        received = receive(manifest.source, device=CPU, timeout_s=20, base=str(folder))
        assert fingerprint(received.tensors) == manifest.fingerprint == fingerprint(whole)
        assert dict(received.tensors).keys() == SHAPES.keys()
    outgoing.close()
    assert len(list((tmp_path / "out" / "adapter").iterdir())) == 1
    copy = filesystem.version_folder(tmp_path / "out", filesystem.versions(tmp_path / "out")[-1])
    assert filesystem.read_manifest(copy).tensors == len(SHAPES)


def test_another_base_gives_another_fingerprint(folder, tmp_path):
    whole = policy(base(seed=7), parts())
    path = adapters.write(tmp_path / "v1.adapter", 1, parts(), list(SHAPES), torch.bfloat16)
    received = receive(f"adapter:{path}", device=CPU, timeout_s=20, base=str(folder))
    assert fingerprint(received.tensors) != fingerprint(whole)


def test_what_does_not_fit_is_said(folder, tmp_path):
    def asked(path, where=folder):
        return receive(f"adapter:{path}", device=CPU, timeout_s=20, base=str(where))

    wide = [part._replace(a=torch.zeros(16, 7)) for part in parts()]
    path = adapters.write(tmp_path / "wide.adapter", 1, wide, list(SHAPES), torch.bfloat16)
    with pytest.raises(ValueError, match=r"adapter of \w+_proj.weight is for \[\d+, 7\].* another model"):
        asked(path)
    path = adapters.write(tmp_path / "more.adapter", 1, parts(), [*SHAPES, "gone.weight"], torch.bfloat16)
    with pytest.raises(ValueError, match=r"lacks 1 tensors of the policy .* gone\.weight"):
        asked(path)
    with pytest.raises(ValueError, match="'someone/model' is none here"):
        asked(path, "someone/model")
    with pytest.raises(FileNotFoundError):
        asked(tmp_path / "gone.adapter")
    save_file({"x": torch.zeros(1)}, tmp_path / "other.adapter")
    with pytest.raises(ValueError, match="no layout"):
        asked(tmp_path / "other.adapter")
    with pytest.raises(ValueError, match="policy has not"):
        adapters.write(tmp_path / "bad.adapter", 1, parts(), ["norm.weight"], torch.bfloat16)
