"""Fingerprints notice what loading can get wrong; the folder transport shows whole versions only."""

import os

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from core.weights import adapters, filesystem
from core.weights.fingerprint import PROBES, Fingerprint, fingerprint, probes
from core.weights.shards import read_tensors, write_tensors


def tensors(seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    return {"a.weight": torch.randn(7, 9, generator=g).to(dtype), "b": torch.randn(300, 40, generator=g).to(dtype),
            "norm": torch.randn(5, generator=g).to(dtype)}  # fmt: skip


def tiny(tied: bool):
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=24, tie_word_embeddings=tied,
    ))  # fmt: skip


def test_probes_are_spread_and_repeatable():
    places = probes("b", (300, 40))
    assert places.shape == (PROBES, 2) and torch.equal(places, probes("b", (300, 40)))
    assert places[0].tolist() == [0, 0] and places[-1].tolist() == [299, 39]
    assert len({row // 30 for row in places[:, 0].tolist()}) == 10  # every tenth of the rows
    assert len(set(places[:, 1].tolist())) > 10  # and no single column
    assert probes("s", ()).shape == (1, 0) and probes("n", (5,)).flatten().tolist() == [0, 1, 2, 3, 4]


def test_fingerprint_is_about_names_shapes_dtypes_and_values():
    base = tensors()
    want = fingerprint(base.items())
    assert fingerprint(reversed(base.items())) == want
    swapped = {"a.weight": base["a.weight"], "b": base["norm"], "norm": base["b"]}
    others = [
        swapped,
        {**base, "b": base["b"].t().contiguous()},
        {**base, "b": base["b"].reshape(40, 300)},
        {**base, "norm": base["norm"].bfloat16()},
        {**base, "a.weight": base["a.weight"] + 1e-6},
        {k: v for k, v in base.items() if k != "norm"},
        tensors(seed=1),
    ]
    assert len({want, *(fingerprint(o.items()) for o in others)}) == 1 + len(others)


def test_fingerprint_can_be_taken_from_a_fused_layout():
    q, k = torch.randn(8, 6), torch.randn(4, 6)
    fused = torch.cat([q, k])  # as an engine may hold it
    seal = Fingerprint()
    for name, shape, row in (("q", (8, 6), 0), ("k", (4, 6), 8)):
        at = probes(name, shape)
        seal.add_values(name, shape, fused[at[:, 0] + row, at[:, 1]])
    assert seal.hexdigest() == fingerprint([("q", q), ("k", k)])


def test_shards_hold_everything_under_their_size(tmp_path):
    files = write_tensors(tmp_path, tensors().items(), max_shard_bytes=2000)
    assert files == ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                     "model-00003-of-00003.safetensors", "model.safetensors.index.json"]  # fmt: skip
    back = read_tensors(tmp_path)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors().items()) and len(back) == 3


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_who_may_read_a_file_made_here_may_read_weights(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_tensors(tmp_path, tensors().items(), max_shard_bytes=2000)
        adapters.write(tmp_path / "v1.adapter", 1, [], ["a"], torch.bfloat16)
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {0o666 & ~mask}


def test_publish_read_and_retention(tmp_path):
    for version in range(1, 6):
        manifest = filesystem.publish(tmp_path, version, tensors(version).items(), keep=2)
    assert filesystem.versions(tmp_path) == [4, 5] and manifest.version == 5 and manifest.tensors == 3
    back = filesystem.read(tmp_path / "v000005")
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors(5).items())
    assert (
        fingerprint(back.items()) == manifest.fingerprint == filesystem.read_manifest(tmp_path / "v000005").fingerprint
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v000004", "v000005"]  # nothing left aside


def test_a_rolled_back_learner_replaces_what_it_had_published(tmp_path):
    for version in (10, 11, 12):
        filesystem.publish(tmp_path, version, tensors(version).items(), keep=3)
    filesystem.publish(tmp_path, 11, tensors(99).items(), keep=3)
    assert filesystem.versions(tmp_path) == [10, 11]
    assert torch.equal(filesystem.read(tmp_path / "v000011")["b"], tensors(99)["b"])


def test_damage_and_absence_are_told(tmp_path):
    filesystem.publish(tmp_path, 1, tensors().items())
    write_tensors(tmp_path / "v000001", tensors(7).items())
    with pytest.raises(ValueError, match="fingerprint"):
        filesystem.read(tmp_path / "v000001")
    with pytest.raises(FileNotFoundError):
        filesystem.read(tmp_path / "v000002")


@pytest.mark.parametrize("tied", [True, False])
def test_load_into_a_model_answers_with_the_fingerprint(tmp_path, tied):
    source, target = tiny(tied), tiny(tied)
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.zero_()
    published = [(name, p.detach().bfloat16()) for name, p in source.named_parameters()]
    assert ("lm_head.weight" in dict(published)) is not tied
    manifest = filesystem.publish(tmp_path, 3, published)
    assert filesystem.load_into(target, tmp_path / "v000003") == manifest.fingerprint
    assert torch.equal(target.lm_head.weight, source.lm_head.weight.bfloat16().float())


def test_load_into_refuses_another_model(tmp_path):
    filesystem.publish(tmp_path, 1, tensors().items())
    with pytest.raises(ValueError, match=r"a\.weight .* absent"):
        filesystem.load_into(tiny(True), tmp_path / "v000001")
    partial = [(n, p.detach()) for n, p in tiny(True).named_parameters()][:-1]
    filesystem.publish(tmp_path, 2, partial)
    with pytest.raises(ValueError, match=r"lacks 1 of the model's tensors"):
        filesystem.load_into(tiny(True), tmp_path / "v000002")
