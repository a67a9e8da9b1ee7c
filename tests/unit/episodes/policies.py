"""Tiny random policies that can be told what to say: `coder` answers with kernels only, `talker` never does.

Their tokenizer has whole kernels as single tokens, so that a few random tokens make an answer. A bias on what is
sampled needs something constant in the hidden state: the first component, which no layer writes to.
"""

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

CONTROL = ["<unk>", "<|user|>", "<|assistant|>", "<|end|>"]
KERNELS = [f"```python\nclass ModelNew:\n    kernel = {number}\n```\n" for number in range(12)]
WORDS = ["fail", "slow", "x", "def", "return"]
VOCAB = [*CONTROL, *WORDS, *KERNELS]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel({token: number for number, token in enumerate(VOCAB)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(CONTROL)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|end|>", unk_token="<unk>", chat_template=TEMPLATE
    )


def policy(says: Sequence[str], context_tokens: int = 256) -> Qwen3ForCausalLM:
    """A random policy that samples only tokens of `says`, and `<|end|>` as one of them."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(VOCAB),
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            intermediate_size=32,
            max_position_embeddings=context_tokens,
            tie_word_embeddings=False,
        )
    ).eval()
    said = {VOCAB.index("<|end|>"), *map(VOCAB.index, says)}
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 3.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
        model.lm_head.weight[:, 0] = torch.tensor([0.0 if i in said else -50.0 for i in range(len(VOCAB))])
    return model


def coder(context_tokens: int = 256) -> Qwen3ForCausalLM:
    return policy(KERNELS, context_tokens)


def talker(context_tokens: int = 256) -> Qwen3ForCausalLM:
    return policy(WORDS, context_tokens)
