"""The policy and the batches of the learner's benchmark, for both sides of it.

A shape is `ROWSxTOKENS`, so many sequences of so many tokens, or `N+N+N`, sequences of those lengths; they are packed
into one row. The first 16 tokens of a sequence are its prompt and everything after is trained, so that nothing is saved
in the head.
"""

import numpy as np

PROMPT_TOKENS = 16
QWEN3_0_6B = {
    "vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_4B = QWEN3_0_6B | {
    "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 9728,
}  # fmt: skip
TINY = QWEN3_0_6B | {
    "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 128,
}  # fmt: skip
MODELS = {"0.6b": QWEN3_0_6B, "4b": QWEN3_4B, "tiny": TINY}


def parse(shape: str) -> list[int]:
    """Lengths of a shape's sequences: `2x5` -> [5, 5], `5+7` -> [5, 7]"""
    rows, times, tokens = shape.partition("x")
    return [int(tokens)] * int(rows) if times else [int(n) for n in shape.split("+")]


def size_gb(name: str) -> float:
    """Of a policy's float32 weights on disk."""
    m = MODELS[name]
    heads = 2 * m["num_attention_heads"] + 2 * m["num_key_value_heads"]
    block = m["hidden_size"] * (heads * m["head_dim"] + 3 * m["intermediate_size"])
    return 4e-9 * (m["vocab_size"] * m["hidden_size"] + m["num_hidden_layers"] * block)


def save_model(name: str, folder: str, device: str) -> None:
    """A policy with random weights and a tokenizer without words, in `folder`."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config

    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(Qwen3Config(**MODELS[name]), dtype=torch.float32)
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="<pad>"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)


def machine(device: str) -> dict:
    """Card and versions of this machine."""
    import torch
    import transformers

    cuda = device == "cuda"
    return {
        "card": torch.cuda.get_device_name() if cuda else "cpu", "torch": torch.__version__,
        "transformers": transformers.__version__, "cudnn": torch.backends.cudnn.version() if cuda else None,
    }  # fmt: skip


def token_ids(shape: str, vocab: int) -> list[np.ndarray]:
    """int32 [tokens] for every sequence, the same on both sides."""
    draw = np.random.default_rng(0)
    return [draw.integers(4, vocab, n, dtype=np.int32) for n in parse(shape)]


def advantages(rows: int) -> list[float]:
    return [1.0 if i % 2 == 0 else -0.5 for i in range(rows)]
