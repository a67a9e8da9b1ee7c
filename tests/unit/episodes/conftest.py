"""Small tokenizers with the chat templates that matter, made here so that no test needs a download."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXT = ["import triton", "def forward(self, x):\n    return torch.relu(x)\n", "```python\nclass ModelNew:\n```\n"] * 3

DEMO = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The two habits of Qwen3: thinking of answers before the last question is dropped, and an empty block is opened for
# the answer when thinking is off.
THINKING = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.index0 < ns.last %}{{ m['content'].split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
FORMS: dict[str, tuple[str, list[str], str, str | None]] = {
    # name: template, control tokens, eos, bos
    "demo": (DEMO, ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"], "<|end|>", None),
    "chatml": (CHATML, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|im_end|>", None),
    "thinking": (THINKING, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|im_end|>", None),
    "llama3": (
        LLAMA3,
        ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "<|end_of_text|>",
        "<|begin_of_text|>",
    ),
}


def _make(form: str) -> PreTrainedTokenizerFast:
    template, control, eos, bos = FORMS[form]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=control,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(TEXT, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=eos, bos_token=bos, chat_template=template)
    return tokenizer


@pytest.fixture(scope="session")
def tokenizers_by_form() -> dict[str, PreTrainedTokenizerFast]:
    return {form: _make(form) for form in FORMS}
