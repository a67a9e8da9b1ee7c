"""One optimizer step: samples in, numbers out.

    trainer = Trainer(TrainerSettings(model="policies/tiny", dtype="float32", kl_coef=0.0))
    numbers = trainer.step(samples)           # {"loss": .., "applied": 1.0, ...}; trainer.version is 1 now
    manifest = trainer.publish("weights")     # core.weights.filesystem

What always holds:
- A policy version is the number of updates applied. A step that is refused (nothing to train on, a number that is not
  finite) changes nothing: weights, optimizer and version stay, `applied` is 0 and `refused_step/<reason>` is 1.
- Every rank is given all samples, computes the same plan, advantages and denominators, and trains its part of the plan:
  in float32 loss and gradients are the same for any micro-batch size, packing order and number of ranks.
- Numbers that are not finite while blocks are compiled are made again with blocks as they are written, on all ranks
  alike (`core.training.compiled`).
- Random draws in a step depend on (seed, version, rank) alone, and the learning rate on the version: what has to be
  saved is weights and optimizer.

With one update per step, `proximal = "recompute"` needs no forward pass of its own: the proximal policy is the current
one, held still. The ratio that is clipped is then 1, and the correction for older versions is the token weight (TIS).
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from core.checkpoints import store
from core.episodes.samples import Sample
from core.training import adapters, flops
from core.training.batch import Batch, Prepared, Rows, make_batch
from core.training.combinations import PER_TOKEN
from core.training.compiled import Guard
from core.training.critic import Critic
from core.training.meanwhile import Meanwhile
from core.training.metrics import MAXIMA, StepClock, correction_names, summary, sums_width
from core.training.model import DTYPES, PolicyModel, gather, load_adamw, load_lm, prepare, refuse_other_kind
from core.training.objective import TokenLoss
from core.training.packing import Packed, longest_sample
from core.training.schedule import learning_rate
from core.training.settings import TrainerSettings
from core.training.snapshot import Staging, TakenCheckpoint, TakenWeights, random_state, set_random_state
from core.training.token_credit import Row, kl_rewards, needs_pass, spread, sums_by_sample, with_advantages
from core.weights import filesystem
from core.weights.adapters import Part
from core.weights.outgoing import Outgoing


class Trainer:
    """The policy, its optimizer and (with `kl_coef`) the reference, on one rank of `world`.

    A process group must stand before a trainer whose settings are `sharded` is made (`core.training.ranks.RankGroup`
    does that); methods are then called on all ranks in the same order.
    """

    def __init__(self, settings: TrainerSettings, rank: int = 0, world: int = 1) -> None:
        self.settings = settings
        self.rank, self.world = rank, world
        self.version = 0
        self.device = device_of(settings, rank)
        if settings.threads:
            torch.set_num_threads(settings.threads)
        mesh = None
        if world > 1 or settings.sharded:
            from torch.distributed.device_mesh import init_device_mesh

            mesh = init_device_mesh(self.device.type, (world,))
        self.model = self._load(mesh, trainable=True)
        config = self.model.lm.config
        longest = longest_sample(config, settings.context_tokens)
        self._of_model = {"vocab": config.vocab_size, "context_tokens": longest}
        self._parameters = flops.multiplying_parameters(self.model.lm)
        # the policy under adapters is its own reference
        self.reference = self._load(mesh, trainable=False) if settings.kl_coef > 0 and not settings.lora_rank else None
        self.critic: Critic | None = None
        if settings.critic:
            self.critic = Critic(settings, load_lm(settings.model, settings.revision), self.device, mesh)
        # Walking through the modules takes a millisecond, several times a step, while the GPU waits.
        self._leaves = list(self.model.parameters())
        self._masters = [p for _, p in self.model.named_masters()]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in self._masters if p.ndim > 1], "weight_decay": settings.weight_decay},
                {"params": [p for p in self._masters if p.ndim <= 1], "weight_decay": 0.0},  # norms
            ],
            lr=settings.lr,
            betas=settings.betas,
            fused=True,
        )
        held = [self.model, self.reference, None if self.critic is None else self.critic.model]
        self._meanwhile = Meanwhile(self.device)
        self.guard = Guard([block for model in held if model is not None for block in model.blocks], told=rank == 0)
        self._staged_weights, self._staged_state = Staging(self.device), Staging(self.device)

    def _load(self, mesh: Any, *, trainable: bool) -> PolicyModel:
        settings = self.settings
        quantization = adapters.quantization(settings)
        lm = load_lm(settings.model, settings.revision, quantization)
        if settings.lora_rank and trainable:
            adapters.add_adapters(lm, settings)
            lm.to(self.device) if quantization is None else None
        model = prepare(
            lm,
            device=self.device,
            dtype=settings.dtype,
            mesh=mesh,
            checkpointing=settings.checkpoint_level,
            compile_blocks=settings.compiled_on(self.device.type, lm.config.hidden_size),
            static_shapes=settings.pack_multiple > 0,
            trainable=trainable,
            cpu_offload=settings.cpu_offload,
            dropout=settings.lora_dropout > 0,
            joined=settings.join_products,
        )
        model.attention, model.chunk_tokens = settings.attention, settings.head_chunk_tokens
        model.cache_gib, model.temperature = settings.head_cache_gib, settings.temperature
        return model

    # One step -------------------------------------------------------------------------------------------------------

    def prepare(self, samples: Sequence[Sample]) -> Prepared:
        """Plan and pack this rank's part of a later step. For any thread: it looks at nothing that a step changes."""
        self._meanwhile.wait()
        started = time.perf_counter()
        batch = make_batch(samples, self.settings, rank=self.rank, world=self.world, **self._of_model)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                rows = [packed.pinned() for packed in batch.rows()]
        else:
            rows = list(batch.rows())
        return Prepared(batch, rows, time.perf_counter() - started)

    def step(self, samples: Sequence[Sample] | Prepared) -> dict[str, float]:
        """Train one update on `samples` (the same on every rank). Returns metrics (`core.training.metrics`).

        Samples that can't be trained on are left out and counted as `refused/<reason>`; their returns, when finite,
        still stand in the baseline of their group.
        """
        with self._meanwhile.step():
            return self._step(samples)

    def _step(self, samples: Sequence[Sample] | Prepared) -> dict[str, float]:
        clock = StepClock(self.device)
        settings = self.settings
        if isinstance(samples, Prepared):
            batch, packs = samples.batch, iter(samples.rows)
        else:
            batch = make_batch(samples, settings, rank=self.rank, world=self.world, **self._of_model)
            packs = batch.rows()
        numbers = {f"refused/{reason}": float(count) for reason, count in batch.refused.items()}
        numbers |= {f"refused_tokens/{reason}": float(count) for reason, count in batch.refused_tokens.items()}
        numbers |= {"samples": float(len(batch.kept)), "version": float(self.version), "applied": 0.0}
        if not batch.kept:
            return numbers | {"refused_step/nothing_to_train_on": 1.0}
        numbers["truncated_share"] = sum(s.truncated for s in batch.samples) / len(batch.samples)
        clock.took("plan_s")

        rows = Rows(packs, self.device)
        numbers |= self.guard.made_sure(lambda: self._gradients(batch, rows, clock))
        numbers |= {"lr": self._lr(), "micro_batches": float(len(batch.bins))}
        trouble = self._trouble(numbers)
        for staging in (self._staged_weights, self._staged_state):
            staging.before_change()
        if self.critic is not None:
            self.critic.update(numbers["value_grad_norm"], apply=not trouble)
        if trouble:
            self.optimizer.zero_grad(set_to_none=True)
            numbers[f"refused_step/{trouble}"] = 1.0
        else:
            self._update(numbers["grad_norm"])
            numbers["applied"] = 1.0
            numbers["version"] = float(self.version)
        clock.took("optimizer_s", wait=True)
        lengths = batch.lengths
        work = flops.step_flops(self._parameters, self.model.lm.config, lengths) / self.world
        numbers |= clock.numbers(tokens=sum(lengths), flops=work)
        return numbers | {"filling_share": 1.0 - batch.tokens / max(rows.tokens, 1)}

    def _gradients(self, batch: Batch, packs: Rows, clock: StepClock) -> dict[str, float]:
        """Gradients of the batch, in the masters, in place of what was there; the numbers that go with them."""
        settings = self.settings
        torch.manual_seed(settings.seed * 1_000_003 + self.version * 1009 + self.rank)
        self._forget()
        value_loss = torch.zeros((), dtype=torch.float64, device=self.device)
        names = correction_names(settings)
        totals = torch.zeros(sums_width(names), dtype=torch.float64, device=self.device)
        maxima = torch.full((len(MAXIMA),), -torch.inf, dtype=torch.float64, device=self.device)
        rows: Iterable[Row] = map(Row, packs)
        if needs_pass(settings):
            rows = self._looked_at(list(rows), batch)
            clock.took("look_s")
        for row in rows:
            clock.took("pack_s")
            loss, sums, highs = self._forward(row)
            loss.backward()
            self._meanwhile.queued()
            self.model.after_backward()
            if self.critic is not None:
                assert row.values is not None and row.targets is not None
                value_loss += self.critic.backward(row.packed, row.values, row.targets.float()).double()
            totals += sums
            maxima = torch.maximum(maxima, highs)
            clock.took("forward_backward_s")
        if self.world > 1:
            dist.all_reduce(totals, op=dist.ReduceOp.SUM)
            dist.all_reduce(maxima, op=dist.ReduceOp.MAX)
            dist.all_reduce(value_loss, op=dist.ReduceOp.SUM)
        numbers = {"grad_norm": self._grad_norm()} | summary(totals.tolist(), maxima.tolist(), names)
        if self.critic is not None:
            numbers |= {"value_loss": float(value_loss), "value_grad_norm": self.critic.grad_norm()}
        clock.took("forward_backward_s")
        return numbers

    def _forget(self) -> None:
        """No gradients, in masters and in parameters (a pass that broke off leaves some there)."""
        for parameter in chain(self._masters, self._leaves):
            parameter.grad = None
        if self.critic is not None:
            self.critic.optimizer.zero_grad(set_to_none=True)
            self.critic.model.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _looked_at(self, rows: list[Row], batch: Batch) -> list[Row]:
        """The rows with what needs the whole step before its first gradient (`core.training.token_credit`)."""
        settings = self.settings
        for row in rows:
            if settings.kl_in == "reward":
                row.reference = self._reference_logprobs(row.packed)
                row.rewards = kl_rewards(self.model(row.packed, want_entropy=False)[0], row.reference, settings)
            if self.critic is not None:
                row.values = self.critic.values(row.packed)
        if settings.advantage in PER_TOKEN:
            return spread(rows, settings, self.world)
        rewards = torch.zeros(len(batch.kept), dtype=torch.float64, device=self.device)
        for row, micro in zip(rows, batch.bins, strict=True):
            rewards[micro] = sums_by_sample(row)[: len(micro)]
        if self.world > 1:
            dist.all_reduce(rewards, op=dist.ReduceOp.SUM)
        advantages = batch.advantages_with(rewards.tolist())
        return [
            with_advantages(row, [advantages[i] for i in micro]) for row, micro in zip(rows, batch.bins, strict=True)
        ]

    def _forward(self, row: Row) -> tuple[Tensor, Tensor, Tensor]:
        """(loss with gradient, sums, maxima) of one micro-batch."""
        packed = row.packed
        reference = self._reference_logprobs(packed) if row.reference is None else row.reference
        token_loss = TokenLoss(self.settings, packed, reference, self.version)
        if self.settings.fused_head:
            loss, logprobs, entropies = self.model(packed, token_loss=token_loss)
        else:
            logprobs, entropies = self.model(packed)
            loss = token_loss(logprobs, entropies)
        return loss, *token_loss.figures(logprobs.detach(), entropies.detach())

    @torch.no_grad()
    def _reference_logprobs(self, packed: Packed) -> Tensor | None:
        if self.settings.kl_coef == 0:
            return None
        if self.reference is not None:
            return self.reference(packed, want_entropy=False)[0]
        with adapters.without_adapters(self.model):
            return self.model(packed, want_entropy=False)[0]

    def _grad_norm(self) -> float:
        grads = [p.grad for p in self._masters if p.grad is not None]
        return float(gather(torch.nn.utils.get_total_norm(grads)))

    def _trouble(self, numbers: dict[str, float]) -> str | None:
        if numbers["not_finite_tokens"] > 0 or not np.isfinite(numbers["loss"]):
            return "non_finite_loss"
        if not np.isfinite(numbers["grad_norm"]):
            return "non_finite_gradients"
        of_values = (numbers.get("value_loss", 0.0), numbers.get("value_grad_norm", 0.0))
        return None if np.isfinite(of_values).all() else "non_finite_values"

    def _lr(self) -> float:
        s = self.settings
        return learning_rate(
            self.version, peak=s.lr, warmup_steps=s.warmup_steps, schedule=s.schedule, total_steps=s.schedule_steps
        )

    def _update(self, grad_norm: float) -> None:
        factor = self.settings.grad_clip / (grad_norm + 1e-6)
        if factor < 1.0:
            torch._foreach_mul_([p.grad for p in self._masters if p.grad is not None], factor)
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.after_update()
        self.version += 1

    # Weights and state ------------------------------------------------------------------------------------------------

    outgoing: Outgoing | None = None
    """Set on rank 0 where weights are handed over otherwise than by a folder alone."""

    def take_weights(self) -> TakenWeights | None:
        """The current version in the compute type, for any thread to publish, on rank 0. Collective."""
        dtype = DTYPES[self.settings.dtype]
        if self.rank == 0 and self.outgoing is not None:
            parts: list[Part] = []  # filled as tensors are walked through
            tensors = list(self.model.full_tensors(dtype, device=self.device, own=True, parts=parts))
            ready = torch.cuda.current_stream(self.device).record_event() if self.device.type == "cuda" else None
            return TakenWeights(self.version, tensors, None, self.outgoing, self.device, ready, parts)
        whole = self.model.full_tensors(dtype, device=None)
        if self.rank == 0:
            taken = self._staged_weights.take(whole, gathered=self.settings.sharded)
            return TakenWeights(self.version, taken, self._staged_weights, None, self.device)
        for _ in whole:  # takes part in gathering
            pass
        return None

    def publish(self, folder: str | Path, keep: int = 3) -> filesystem.Manifest | None:
        """Hand the current version over and wait for it (`TakenWeights.publish`). The manifest, on rank 0."""
        taken = self.take_weights()
        return None if taken is None else taken.publish(folder, keep)

    def take_checkpoint(self, **extra: Any) -> TakenCheckpoint | None:
        """All that is needed to continue from this moment, for any thread to write, on rank 0. Collective.

        extra: fields of `store.Extra` other than `version`.
        """
        weights = ((f"weights/{name}", t) for name, t in self.model.full_tensors(device=None))
        optimizer = ((f"optimizer/{name}", t) for name, t in self.optimizer_tensors(device=None))
        if self.rank != 0:
            for _ in chain(weights, optimizer):  # takes part in gathering
                pass
            return None
        taken = self._staged_state.take(chain(weights, optimizer), gathered=self.settings.sharded)
        parts: dict[str, list[tuple[str, Tensor]]] = {"weights": [], "optimizer": []}
        for name, tensor in taken:
            part, _, short = name.partition("/")
            parts[part].append((short, tensor))
        return TakenCheckpoint(
            **parts,
            random=random_state(self.device),
            extra=store.Extra(version=self.version, **extra),
            model=self.settings.model,
            dtype=self.settings.dtype,
            staging=self._staged_state,
        )

    def save(self, folder: str | Path, **extra: Any) -> Path | None:
        """Write a checkpoint of this moment under `folder` and wait for it (`TakenCheckpoint.write`). On rank 0."""
        taken = self.take_checkpoint(**extra)
        return None if taken is None else taken.write(folder)

    def load(self, path: str | Path) -> store.Extra:
        """Continue from the checkpoint at `path`, written with any number of ranks; answers with its extra."""
        loaded = store.load(path)
        self.load_state(loaded.weights, loaded.optimizer, loaded.extra.version)
        if self.rank == 0:
            set_random_state(loaded.random, self.device)
        return loaded.extra

    def optimizer_tensors(self, device: torch.device | str | None = "cpu") -> Iterator[tuple[str, Tensor]]:
        """Optimizer state, gathered, as `<parameter>.<state>`; empty before the first update. Collective.
        device: None leaves each where it is."""
        for name, parameter in self.model.named_masters():
            for key, value in sorted(self.optimizer.state.get(parameter, {}).items()):
                yield f"{name}.{key}", gather(value.detach()).to(device)
            if self.settings.lora_rank:  # weights hold adapters only added in
                yield f"{name}.value", gather(parameter.detach()).to(device)
        if self.critic is not None:
            yield from self.critic.tensors(device)

    @torch.no_grad()
    def load_state(self, weights: dict[str, Tensor], optimizer: dict[str, Tensor], version: int) -> None:
        """Continue from full tensors, as `full_tensors` and `optimizer_tensors` gave them, with any number of ranks."""
        masters = [name for name, _ in self.model.named_masters()]
        values = [] if self.critic is None else [name for name, _ in self.critic.model.named_masters()]
        refuse_other_kind(optimizer, masters if self.settings.lora_rank else [], values)
        if self.settings.lora_rank:
            weights = {name: optimizer[f"{name}.value"] for name in masters}
        self.model.load_full_tensors(weights)
        self.version = version
        if self.critic is not None:
            self.critic.load_tensors(optimizer)
        load_adamw(self.optimizer, self.model.named_masters(), optimizer)


def device_of(settings: TrainerSettings, rank: int) -> torch.device:
    """The device of a rank; raises ValueError when there is none for it."""
    kind = settings.device if settings.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cpu":
        return torch.device("cpu")
    if rank >= torch.cuda.device_count():
        raise ValueError(
            f"learner rank {rank} needs a GPU of its own, but there are {torch.cuda.device_count()}: lower "
            f"learner.ranks or set learner.device = 'cpu'"
        )
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)
