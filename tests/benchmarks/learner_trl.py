"""TRL's GRPO step on a prepared batch, as JSON lines; run by `tests.benchmarks.learner` in a process of its own.

TRL's own `train()` runs: its training step (loss, backward), gradient clipping, fused AdamW and schedule. Only the
batch is handed to it instead of being generated, which is not what is measured. A step is timed from one
`on_step_begin` to its `on_step_end`, waiting for the GPU. Variants: whether Liger's kernels (model and GRPO loss) are
used, and whether activations are kept or computed again. Parameters are float32, computing in bfloat16 (TRL's
default), which is what ours does; `parameters=bfloat16` is TRL with everything in bfloat16, which is less exact.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
import traceback

from tests.benchmarks.learner_shapes import PROMPT_TOKENS, advantages, parse, token_ids

# Liger's kernels replace modules of transformers for the rest of the process, so what is plain comes first.
VARIANTS = {
    "plain,recompute": {"liger": False, "checkpointing": True},
    "plain,keep": {"liger": False, "checkpointing": False},
    "liger,keep": {"liger": True, "checkpointing": False},
    "liger,recompute": {"liger": True, "checkpointing": True},
    "liger,keep,bf16": {"liger": True, "checkpointing": False, "bf16_parameters": True},
}


def measure(model: str, shape: str, device: str, steps: int, warmup: int, *, liger: bool, checkpointing: bool,
            bf16_parameters: bool = False) -> dict:  # fmt: skip
    import torch
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from torch.nn.utils.rnn import pad_sequence
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    lengths = parse(shape)
    rows, tokens = len(lengths), max(lengths)
    cuda = device == "cuda"

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.took: list[float] = []

        def now(self) -> float:
            if cuda:
                torch.cuda.synchronize()
            return time.perf_counter()

        def on_step_begin(self, args, state, control, **kwargs):
            self.began = self.now()
            if cuda and state.global_step == warmup:
                torch.cuda.reset_peak_memory_stats()

        def on_step_end(self, args, state, control, **kwargs):
            self.took.append(self.now() - self.began)

    class Prepared(GRPOTrainer):
        """GRPOTrainer whose batches are there already."""

        batch: dict

        def _prepare_inputs(self, generation_batch):
            return self.batch

    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out, per_device_train_batch_size=rows, gradient_accumulation_steps=1,
            steps_per_generation=1 if rows > 1 else 2, num_generations=max(rows, 2), max_completion_length=tokens,
            max_steps=steps + warmup, logging_steps=10**6, save_strategy="no", report_to=[], beta=0.0, bf16=cuda,
            use_cpu=not cuda, gradient_checkpointing=checkpointing, use_liger_kernel=liger, disable_tqdm=True,
            learning_rate=1e-6, max_grad_norm=1.0, dataloader_pin_memory=False,
            optim="adamw_torch_fused", model_init_kwargs={
                "dtype": "bfloat16" if bf16_parameters else "float32", "attn_implementation": "sdpa",
            },
        )  # fmt: skip
        clock = Clock()
        # with a fingerprint of its own, since some versions of datasets and pyarrow can't make one together
        prompts = Dataset(InMemoryTable.from_pydict({"prompt": ["a"] * 256}), fingerprint="benchmark")
        trainer = Prepared(
            model=model, args=config, train_dataset=prompts,
            reward_funcs=[lambda completions, **kwargs: [0.0] * len(completions)], callbacks=[clock],
        )  # fmt: skip
        parts = [torch.from_numpy(x).long() for x in token_ids(shape, trainer.model.config.vocab_size)]
        ids = pad_sequence(parts, batch_first=True).to(trainer.accelerator.device)
        mask = pad_sequence([torch.ones_like(x) for x in parts], batch_first=True).to(ids.device)
        trainer.batch = {
            "prompt_ids": ids[:, :PROMPT_TOKENS], "prompt_mask": mask[:, :PROMPT_TOKENS],
            "completion_ids": ids[:, PROMPT_TOKENS:], "completion_mask": mask[:, PROMPT_TOKENS:],
            "advantages": torch.tensor(advantages(rows), device=ids.device),
            "num_items_in_batch": mask[:, PROMPT_TOKENS:].sum(),
        }  # fmt: skip
        trainer.train()
    seconds = statistics.median(clock.took[warmup:])
    return {
        "tokens_per_s": round(sum(lengths) / seconds),
        "step_s": round(seconds, 4),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if cuda else None,
    }


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("model")
    ask.add_argument("--device", default="cuda")
    ask.add_argument("--shapes", required=True)
    ask.add_argument("--steps", type=int, default=3)
    ask.add_argument("--warmup", type=int, default=2)
    ask.add_argument("--seconds", type=float, default=110.0)
    said = ask.parse_args()

    import torch
    import transformers
    import trl
    from trl import GRPOTrainer  # noqa: F401  importing takes long and is not to be timed

    began = time.perf_counter()

    versions = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    print(json.dumps({"versions": versions}), flush=True)
    for variant, fields in VARIANTS.items():
        if fields["liger"] and said.device == "cpu":
            continue  # its kernels are Triton's
        for shape in said.shapes.split(","):
            if time.perf_counter() - began > said.seconds:
                print(json.dumps({"shape": shape, "variant": variant, "error": "no time left"}), flush=True)
                continue
            line = {"shape": shape, "variant": variant}
            try:
                line |= measure(said.model, shape, said.device, said.steps, said.warmup, **fields)
            except Exception as error:  # one variant that does not fit or run must not hide the others
                line["error"] = f"{type(error).__name__}: {str(error)[:300]}"
                if not isinstance(error, torch.OutOfMemoryError):
                    traceback.print_exc(file=sys.stderr)
            print(json.dumps(line), flush=True)
            gc.collect()
            if said.device == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
