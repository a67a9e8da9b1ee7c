"""The sections that rollouts and hand-overs read: they mean what the engine means, and refuse what can't be."""

import pytest

from configs.load import ConfigError, load
from configs.rollouts import VLLM, Rollout
from core.generation.vllm_engine import VLLMSettings

CARD = 'model.path = "m"\nweights.transport = "{transport}"\n{more}'


def test_the_vllm_section_is_the_engines_settings():
    assert VLLMSettings(**VLLM().model_dump()) == VLLMSettings()
    changed = {
        "tensor_parallel": 2, "gpu_memory": 0.5, "cache_gb": 8.0, "max_sequences": 9, "eager": True,
        "prefix_cache": False, "restarts": 1, "stage_timeout_s": 2.0, "swap_timeout_s": 3.0,
        "silent_timeout_s": 4.0, "extra": {"block_size": 32},
    }  # fmt: skip
    assert changed.keys() == VLLM.model_fields.keys() == set(VLLMSettings.__struct_fields__)
    assert VLLMSettings(**VLLM(**changed).model_dump()) == VLLMSettings(**changed)


def load_text(folder, text):
    path = folder / "run.toml"
    path.write_text(text)
    return load(path)


@pytest.mark.parametrize(
    ("transport", "more", "said"),
    [
        ("nccl", 'learner.device = "cpu"', "needs a learner on a GPU"),
        ("ipc", 'learner.device = "cpu"', "needs a learner on a GPU"),
        ("ipc", 'rollout.engine = "transformers"', "the transformers engine reads folders"),
        ("adapter", "", "'adapter' sends adapters for the weights in model.path, but learner.lora_rank = 0"),
        ("adapter", 'learner.lora_rank = 8\nlearner.quantize = "nf4"', "quantize = 'nf4': set lora_rank"),
        ("nccl", "weights.ports = [29600, 29500]", "wanted 1 <= first <= last <= 65535"),
        ("nccl", "weights.ports = [0, 29500]", "wanted 1 <= first"),
        ("ipc", 'weights.host = "here"', "host and ports are for transport = 'nccl'"),
        ("filesystem", "weights.ports = [1, 2]", "host and ports are for transport = 'nccl'"),
        ("bus", "", "weights.transport: wanted 'filesystem', 'ipc', 'nccl' or 'adapter', got 'bus'"),
        ("filesystem", "rollout.parity_max_abs = 0", "set both, leave both out, or set both to 0"),
        ("filesystem", "rollout.vllm.gpu_memory = 1.5", "rollout.vllm.gpu_memory: "),
        ("filesystem", "rollout.vllm.max_sequence = 5", "did you mean rollout.vllm.max_sequences?"),
        ("filesystem", "rollout.cards = [0, 0]", "named twice"),
        ("filesystem", "rollout.cards = [4]\nrollout.vllm.tensor_parallel = 2", "needs 2 cards"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(tmp_path, transport, more, said):
    with pytest.raises(ConfigError) as error:
        load_text(tmp_path, CARD.format(transport=transport, more=more))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_what_can_be_is_accepted(tmp_path):
    config = load_text(
        tmp_path, CARD.format(transport="nccl", more='weights.ports = [29500, 29510]\nweights.host = "a"')
    )
    assert config.weights.ports == (29500, 29510)
    on_cpu = 'learner.lora_rank = 8\nlearner.device = "cpu"\nrollout.engine = "transformers"'
    assert load_text(tmp_path, CARD.format(transport="adapter", more=on_cpu)).weights.transport == "adapter"
    assert load_text(
        tmp_path, CARD.format(transport="ipc", more="rollout.parity_max_abs = 0\nrollout.parity_mean_share = 0")
    )


def test_generators_part_the_cards_by_their_number():
    rollout = Rollout(cards=(4, 5, 6, 7), vllm=VLLM(tensor_parallel=2))
    assert rollout.cards_of("generator-0") == rollout.cards_of("generator") == (4, 5)
    assert rollout.cards_of("generator-1") == (6, 7)
    assert rollout.cards_of("generator-2") == (4, 5)
    assert Rollout().cards_of("generator-1") == ()
