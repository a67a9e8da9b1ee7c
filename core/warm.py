"""Import once what the actors import, so that Python keeps it compiled: `python -m core.warm` is part of the set-up.

Without this each of the first run's processes would compile torch and transformers for itself, all at the same time.
"""

import importlib

MODULES = (
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "triton.language",
    "triton.runtime.interpreter",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen3.modeling_qwen3",
    "nats",
    "pydantic",
    "rich.live",
    "wandb",
    "pytest",
    "hypothesis",
)


def main() -> None:
    for name in MODULES:
        importlib.import_module(name)


if __name__ == "__main__":
    main()
