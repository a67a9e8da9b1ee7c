"""Whatever stands in a script, a recipe that was made of it loads."""

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from configs import importing
from configs.load import ConfigError
from tests.unit.configs.imports import SLIME, recipe, slime, verl

FOLDER = Path(importing.__file__).parent
NAMES = sorted(set(re.findall(r'"([a-z][a-z0-9]+(?:-[a-z0-9]+)+)"', (FOLDER / "slime.py").read_text())))
KEYS = sorted(
    {
        prefix + name
        for source in ("verl.py", "verl_learning.py")
        for prefix, name in [
            *((f"actor_rollout_ref.{part.lower()}.", name) for part, name in
              re.findall(r'\b(ACTOR|ROLLOUT|MODEL) \+ "([\w.]+)"', (FOLDER / source).read_text())),
            *(("", name) for name in
              re.findall(r'"((?:data|algorithm|trainer|critic)\.[\w.]+\w)"', (FOLDER / source).read_text())),
        ]
    }
)  # fmt: skip
WORDS = r"""
0 1 -1 2 3 8 0.5 1e-6 1e3 1e400 nan inf -0.3 999999999999999999999 0x10 - True False null '' grpo gspo cispo dppo_tv
ppo gae rloo reinforce_plus_plus reinforce kl k1 k2 low_var_kl token sequence 0.5_5.0 5_0.5 token_k1 seq_sum_k1 cosine
linear full nccl disk hf sglang separate_async $X $(x) [a,b] /a/b.jsonl a\"b é
"""
VALUES = st.sampled_from([*WORDS.split(), "\x01"])


def loads(text):
    try:
        recipe(text)
    except ConfigError as error:
        assert "no option of" in str(error), error


def test_names_were_found():
    assert len(NAMES) > 60 and len(KEYS) > 40


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.dictionaries(st.sampled_from(NAMES), VALUES | st.just(True), max_size=10),
    st.sampled_from(["train.py", "train_async.py"]),
    st.sets(st.sampled_from(sorted(SLIME)), max_size=3),
)
def test_of_slime(more, program, without):
    loads(slime(program, without, **more))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=12))
def test_of_verl(more):
    loads(verl(more))
