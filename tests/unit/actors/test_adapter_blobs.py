"""Adapters over the bus into a generator's engine, which holds the whole policy after it, or takes the folder."""

import asyncio

import torch

from actors.adapter_blobs import AdapterBlobs
from bus import facts
from core.weights.adapters import Part, merged
from core.weights.outgoing import Outgoing
from tests.unit.actors.generator_stage import Stage, versions


def adapted(stage, seed):
    """(the policy with adapters added in, the adapters)"""
    draw = torch.Generator().manual_seed(seed)
    parts = [
        Part(name, torch.randn(4, w.shape[1], generator=draw), 0.02 * torch.randn(len(w), 4, generator=draw), 2.0)
        for name, w in stage.weights()
        if name.endswith("_proj.weight")
    ]
    by_name = {part.name: part for part in parts}
    whole = [(n, merged(w, by_name[n], torch.float32) if n in by_name else w) for n, w in stage.weights()]
    return whole, parts


def test_adapters_become_the_policy_and_a_trimmed_blob_leaves_the_folder(tmp_path):
    stage = Stage(tmp_path, max_new_tokens=40)

    async def scene():
        await stage.open()
        await stage.policy(0, *stage.write(0))
        outgoing, blobs = Outgoing("adapter", device=torch.device("cpu")), AdapterBlobs(stage.bus, keep=1)

        async def publish(version):
            whole, parts = adapted(stage, version)
            manifest = await asyncio.to_thread(outgoing.publish, tmp_path / "out", version, whole, parts=parts)
            source = await blobs.put(manifest.source, f"i1-v{version}")
            assert source.startswith("adapter-blob:") and manifest.bytes < 0.5 * sum(t.nbytes for _, t in whole)
            return source, manifest.fingerprint

        async def applied():
            return [fact.data["version"] for fact in await stage.facts(facts.WEIGHTS_APPLIED)]

        async def played(count):
            return len(await stage.episodes()) == count

        async with stage.generator() as (actor, work):
            await stage.request("a", size=1)
            await stage.until(work, lambda: played(1))
            source, fingerprint = await publish(1)
            await stage.policy(1, str(tmp_path / "nowhere"), fingerprint, source)
            await stage.until(work, lambda: holds(actor, 1))
            await stage.request("b", size=4)
            await stage.until(work, lambda: played(5))
            old, _ = await publish(2)
            await publish(3)  # keep = 1: version 2's blob is gone
            await stage.policy(2, *stage.write(2, 1.25), old)
            await stage.until(work, lambda: holds(actor, 2))
        outgoing.close()
        return await stage.episodes(), await applied()

    async def holds(actor, version):
        return actor.policy_held()[0] == version

    async def bounded():
        async with asyncio.timeout(60):
            return await scene()

    episodes, applied = asyncio.run(bounded())
    assert versions(episodes[1:]) == {1} and applied == [0, 1, 2]
