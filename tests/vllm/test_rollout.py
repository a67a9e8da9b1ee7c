"""A multi-turn rollout on vLLM with updates in the middle of its sequences: what is trained on is what was sampled."""

import asyncio

import numpy as np
import pytest

from core import columns
from core.episodes.chat import Chat
from core.episodes.play import PlaySettings, play_group
from core.episodes.samples import samples_of
from core.evaluation.verdict import Verdict
from core.generation import parity
from core.generation.lanes import Lanes
from core.tasks.task import Task

TOLERANCE = 2e-3
EPISODES, TURNS = 6, 3
TASK = Task(
    task_id="t/one",
    name="one",
    level=1,
    origin="t",
    source="class Model:\n    def forward(self, x):\n        return x\n",
)


@pytest.fixture(scope="module")
def lanes(engine):
    return Lanes(engine)


def tokenizer():
    """One token per byte; control tokens have the ids that the models know as end of turn."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    control = ["<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"]
    vocab = {token: number for number, token in enumerate(control)}
    vocab |= {token: number + 4 for number, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.add_special_tokens(control)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    template = (
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>", chat_template=template)


def test_multi_turn_with_updates_mid_sequence(run, lanes, policies, reference):
    _, folders, manifests = policies
    settings = PlaySettings(prompt="compact", max_new_tokens=60, max_turns=TURNS, zero_turns=TURNS + 1)
    swapped = asyncio.Event()
    engine = lanes.engine

    async def judge(task, candidate):
        raise AssertionError("random bytes hold no code block")

    async def updates():
        version = 0
        while not swapped.is_set():
            at = engine.gauges()["tokens_total"]
            while engine.gauges()["running"] < 2 or engine.gauges()["tokens_total"] < at + 120:
                if swapped.is_set():
                    return version
                await asyncio.sleep(0.005)
            version = min(version + 1, 2)
            assert await lanes.load_weights(folders[version], version) == manifests[version].fingerprint
        return version

    async def play():
        assert await lanes.load_weights(folders[0], 0) == manifests[0].fingerprint
        updating = asyncio.create_task(updates())
        group = play_group(
            TASK, group_id="g", indices=range(EPISODES), engine=lanes, chat=Chat(tokenizer()), judge=judge,
            score=lambda verdict: 0.0, settings=settings, seed=1,
        )  # fmt: skip
        episodes = [episode async for episode in group]
        swapped.set()
        await updating
        return episodes

    episodes = run(play())
    assert len(episodes) == EPISODES and {episode.end for episode in episodes} == {"max_turns"}
    mixed = pure = 0
    for episode in episodes:
        assert len(episode.turns) == TURNS
        for turn in episode.turns:
            prompt = columns.unpack("ids", turn.prompt_ids).tolist()
            ids = columns.unpack("ids", turn.completion_ids).tolist()
            logprobs, versions = columns.unpack("logprobs", turn.logprobs), columns.unpack("versions", turn.versions)
            assert len(ids) == len(logprobs) == len(versions) and (np.diff(versions) >= 0).all()
            first = int(versions[0])
            head = int((versions == first).sum())
            # Until the first update inside the turn, cache and weights are of one version: exact.
            assert np.abs(logprobs[:head] - reference(first, prompt, ids)[:head]).max() < TOLERANCE
            mixed += head < len(ids)
            pure += head == len(ids)
    assert mixed and pure and engine.spans_differed == 0
    for episode in episodes:
        sampled = sum(len(columns.unpack("ids", turn.completion_ids)) for turn in episode.turns)
        trained = 0
        for sample in samples_of(episode, credit="turn", gamma=0.4):
            mask, ids = np.asarray(sample.mask).astype(bool), np.asarray(sample.ids)
            trained += int(mask.sum())
            assert len(mask) == len(ids)
        assert trained == sampled  # assistant tokens, all of them and nothing else


def test_held_out_evaluation_is_of_one_version_beside_training(run, lanes, policies):
    from core.episodes.heldout import evaluate
    from core.generation.engine import Sampling

    settings = PlaySettings(prompt="compact", max_new_tokens=24, max_turns=1, temperature=0)

    async def judge(task, candidate):
        return Verdict(candidate_key="k", kind="fail")

    async def play():
        await lanes.load_weights(policies[1][0], 0)
        training = [asyncio.create_task(lanes.generate([5, 6, n], Sampling(max_new_tokens=500))) for n in range(7, 11)]
        async with lanes.pinned(hold_s=200) as view:
            swap = asyncio.create_task(lanes.load_weights(policies[1][1], 1))
            found = await evaluate(
                [TASK], engine=view, chat=Chat(tokenizer()), judge=judge, score=lambda v: 0.0, settings=settings,
                samples_per_task=2,
            )  # fmt: skip
            assert not swap.done()
        await swap
        return found, await asyncio.gather(*training)

    found, training = run(play())
    assert found.version == 0 and found.figures["episodes/played"] == 2
    assert all(len(done.ids) == 500 for done in training)  # none was aborted
    assert any(set(done.versions) == {0, 1} for done in training)


def test_parity_probe_passes_and_refuses(run, lanes, policies):
    prompts = [[5, 6, 7 + n] for n in range(4)]
    run(lanes.load_weights(policies[1][2], 2))
    right = run(parity.probe(lanes, prompts, parity.transformers_score(str(policies[0][2])), max_new_tokens=32))
    right.check(max_abs=TOLERANCE, mean_share=0.001)
    wrong = run(parity.probe(lanes, prompts, parity.transformers_score(str(policies[0][1])), max_new_tokens=32))
    with pytest.raises(parity.ParityError, match="not training"):
        wrong.check(max_abs=0.5, mean_share=0.1)
