"""Small byte-level BPE tokenizers with the chat templates of the model families that the loss masks are named for.

QWEN3 is the chat template of Qwen3 (2504) without its tool calls, which nothing here uses.
  Copyright 2024 Alibaba Cloud. Licensed under the Apache License, Version 2.0 (the "License"); you may not use it
  except in compliance with the License, a copy of which is at http://www.apache.org/licenses/LICENSE-2.0. Distributed
  on an "AS IS" BASIS, without warranties or conditions of any kind. Changed: tool calls and their responses left out.
LLAMA31, QWEN3_THINKING and STRICT are our own, written after how the templates of Llama 3.1, Qwen3-Thinking-2507 and
Gemma behave: the first one's system message with its dates stands always, contents are trimmed; the second one opens
the thought; the last one refuses roles that do not alternate.
"""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

QWEN3 = """
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') }}
                {{- '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

QWEN3_THINKING = (
    "{%- set ns = namespace(last=0) %}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' and loop.index0 < ns.last %}{{- m.content.split('</think>')[-1].lstrip('\\n') }}"
    "{%- else %}{{- m.content }}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)

QWEN25 = (
    "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nYou are a coder.<|im_end|>\\n' }}{%- endif %}"
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

LLAMA31 = (
    "{%- macro turn(role, said) %}{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' + said + '<|eot_id|>' }}"
    "{%- endmacro %}"
    "{%- if date_string is defined %}{%- set today = date_string %}"
    "{%- elif strftime_now is defined %}{%- set today = strftime_now('%d %b %Y') %}"
    "{%- else %}{%- set today = '26 Jul 2024' %}{%- endif %}"
    "{%- set given = messages[0].role == 'system' %}"
    "{{- bos_token }}"
    "{{- turn('system', 'Cutting Knowledge Date: December 2023\\nToday Date: ' + today + '\\n\\n' "
    "+ (messages[0].content | trim if given else '')) }}"
    "{%- for m in (messages[1:] if given else messages) %}{{- turn(m.role, m.content | trim) }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)

STRICT = (
    "{%- for m in messages %}"
    "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

_QWEN_CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_LLAMA_CONTROL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
_LLAMA_CONTROL += ["<|eom_id|>", "<|eot_id|>"]
FAMILIES = {
    # name: (template, control tokens, bos, eos)
    "qwen3": (QWEN3, _QWEN_CONTROL, None, "<|im_end|>"),
    "qwen3-thinking": (QWEN3_THINKING, _QWEN_CONTROL, None, "<|im_end|>"),
    "qwen2.5": (QWEN25, _QWEN_CONTROL, None, "<|im_end|>"),
    "strict": (STRICT, _QWEN_CONTROL, None, "<|im_end|>"),
    "llama3.1": (LLAMA31, _LLAMA_CONTROL, "<|begin_of_text|>", "<|eot_id|>"),
}

_TEXT = [
    "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef kernel(x_ptr, n):\n    pass\n",
    "```python\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return x\n```\n",
    "<|im_start|>user\nfail wrong_value<|im_end|>\n<|im_start|>assistant\n\nuser\n\nassistant\n```\n",
    "Attempt 1: wrong_value, score 0.10\nsystem\n\nCutting Knowledge Date\n\n```python\n",
] * 3
# Words with their space, digits, other signs with the line ends behind them, white space: as Qwen and Llama split.
_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def family(name: str, *, merging: bool = False, bos_first: bool = False) -> PreTrainedTokenizerFast:
    """`merging`: text is not split before merges, so that these cross every border. `bos_first`: the tokenizer itself
    puts BOS before every text, as Llama's does."""
    from tokenizers import Regex

    template, control, bos, eos = FAMILIES[name]
    inner = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated")
    inner.pre_tokenizer = byte_level if merging else pre_tokenizers.Sequence([split, byte_level])
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=control,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(_TEXT, trainer)
    if bos_first and bos:
        inner.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, inner.token_to_id(bos))]
        )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=bos, eos_token=eos, chat_template=template)
    if name.startswith("qwen3"):
        tokenizer.add_tokens(["<think>", "</think>"])
    return tokenizer
