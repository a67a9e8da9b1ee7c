"""One optimizer step: samples in, numbers out.

    trainer = Trainer(TrainerSettings(model="policies/tiny", dtype="float32", kl_coef=0.0))
    numbers = trainer.step(samples)           # {"loss": .., "applied": 1.0, ...}; trainer.version is 1 now
    manifest = trainer.publish("weights")     # core.weights.filesystem

What always holds:
- A policy version is the number of updates applied. A step that is refused (nothing to train on, a number that is not
  finite) changes nothing: weights, optimizer and version stay, `applied` is 0 and `refused_step/<reason>` is 1.
- Every rank is given all samples, computes the same plan, advantages and denominators, and trains its part of the plan:
  in float32 loss and gradients are the same for any micro-batch size, packing order and number of ranks.
- Random draws in a step depend on (seed, version, rank) alone, and the learning rate on the version: what has to be
  saved is weights and optimizer.

With one update per step, `proximal = "recompute"` needs no forward pass of its own: the proximal policy is the current
one, held still. The ratio that is clipped is then 1, and the correction for older versions is the token weight (TIS).
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from core.algorithms.advantages import advantages, index_by_key
from core.algorithms.corrections import token_tis
from core.algorithms.objectives import kl_k3, ppo_clip, sample_weights
from core.checkpoints import store
from core.episodes.samples import Sample
from core.training.metrics import MAXIMA, SUMS, summary
from core.training.model import DTYPES, PolicyModel, gather, load_lm, prepare, scatter_into
from core.training.packing import Packed, pack, plan, sift
from core.training.schedule import learning_rate
from core.training.settings import TrainerSettings
from core.weights import filesystem


class Trainer:
    """The policy, its optimizer and (with `kl_coef`) the reference, on one rank of `world`.

    A process group must stand before a trainer of several ranks, or one in bfloat16, is made
    (`core.training.ranks.RankGroup` does that); methods are then called on all ranks in the same order.
    """

    def __init__(self, settings: TrainerSettings, rank: int = 0, world: int = 1) -> None:
        self.settings = settings
        self.rank, self.world = rank, world
        self.version = 0
        self.device = device_of(settings, rank)
        if settings.threads:
            torch.set_num_threads(settings.threads)
        mesh = None
        if world > 1 or settings.dtype != "float32":
            from torch.distributed.device_mesh import init_device_mesh

            mesh = init_device_mesh(self.device.type, (world,))
        self.model = self._load(mesh, trainable=True)
        self.reference = self._load(mesh, trainable=False) if settings.kl_coef > 0 else None
        masters = [p for _, p in self.model.named_masters()]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in masters if p.ndim > 1], "weight_decay": settings.weight_decay},
                {"params": [p for p in masters if p.ndim <= 1], "weight_decay": 0.0},  # norms
            ],
            lr=settings.lr,
            betas=settings.betas,
            fused=True,
        )

    def _load(self, mesh: Any, *, trainable: bool) -> PolicyModel:
        settings = self.settings
        return prepare(
            load_lm(settings.model, settings.revision),
            device=self.device,
            dtype=settings.dtype,
            mesh=mesh,
            activation_checkpointing=settings.activation_checkpointing,
            compile_blocks=settings.compile,
            trainable=trainable,
        )

    # One step -------------------------------------------------------------------------------------------------------

    def step(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Train one update on `samples` (the same list on every rank). Returns metrics (`core.training.metrics`).

        Samples that can't be trained on are left out and counted as `refused/<reason>`; their returns, when finite,
        still stand in the baseline of their group.
        """
        started = time.perf_counter()
        settings = self.settings
        torch.manual_seed(settings.seed * 1_000_003 + self.version * 1009 + self.rank)
        kept, refused = sift(samples, settings.max_tokens_per_rank)
        numbers = {f"refused/{reason}": float(count) for reason, count in refused.items()}
        numbers |= {"samples": float(len(kept)), "version": float(self.version), "applied": 0.0}
        if not kept:
            return numbers | {"refused_step/nothing_to_train_on": 1.0}

        scale = self._advantages(samples)
        trained = torch.tensor([int(samples[i].mask.sum()) for i in kept])
        weights = sample_weights(trained, settings.denominator, constant_tokens=settings.constant_tokens).tolist()
        bins = plan([len(samples[i].ids) for i in kept], budget_tokens=settings.max_tokens_per_rank, ranks=self.world)[
            self.rank
        ]

        self.optimizer.zero_grad(set_to_none=True)
        totals = torch.zeros(len(SUMS), dtype=torch.float64, device=self.device)
        maxima = torch.full((len(MAXIMA),), -torch.inf, dtype=torch.float64, device=self.device)
        for micro in bins:
            packed = pack(
                [samples[kept[i]] for i in micro], [scale[kept[i]] for i in micro], [weights[i] for i in micro]
            ).to(self.device)
            loss, sums, highs = self._forward(packed)
            loss.backward()
            totals += sums
            maxima = torch.maximum(maxima, highs)
        if self.world > 1:
            dist.all_reduce(totals, op=dist.ReduceOp.SUM)
            dist.all_reduce(maxima, op=dist.ReduceOp.MAX)
        grad_norm = self._grad_norm()

        numbers |= summary(totals.tolist(), maxima.tolist())
        numbers |= {"grad_norm": grad_norm, "lr": self._lr(), "micro_batches": float(len(bins))}
        trouble = self._trouble(numbers)
        if trouble:
            self.optimizer.zero_grad(set_to_none=True)
            numbers[f"refused_step/{trouble}"] = 1.0
        else:
            self._update(grad_norm)
            numbers["applied"] = 1.0
            numbers["version"] = float(self.version)
        numbers["step_s"] = time.perf_counter() - started
        numbers["tokens_per_s"] = sum(len(samples[i].ids) for i in kept) / numbers["step_s"]
        return numbers

    def _advantages(self, samples: Sequence[Sample]) -> list[float]:
        """One number per sample, compared by id within (group, turn, role); 0 where the return is not finite."""
        keys = [(s.group_id, s.turn, s.role) for s in samples]
        twice = [k for k, n in Counter((*key, s.index) for key, s in zip(keys, samples, strict=True)).items() if n > 1]
        if twice:
            group, turn, role, index = twice[0]
            raise ValueError(f"episode {group}/{index} turn {turn} ({role}) is in the batch twice")
        sound = [i for i, s in enumerate(samples) if np.isfinite(s.ret)]
        values = advantages(
            torch.tensor([samples[i].ret for i in sound], dtype=torch.float64),
            index_by_key([keys[i] for i in sound]),
            baseline=self.settings.baseline,
            std_normalisation=self.settings.std_normalisation,
        )
        out = [0.0] * len(samples)
        for i, value in zip(sound, values.tolist(), strict=True):
            out[i] = value
        return out

    def _forward(self, packed: Packed) -> tuple[Tensor, Tensor, Tensor]:
        """(loss with gradient, SUMS, MAXIMA) of one micro-batch."""
        settings = self.settings
        logprobs, entropies = self.model(packed)
        proximal = logprobs.detach() if settings.proximal == "recompute" else packed.behaviour
        objective, _, clipped = ppo_clip(
            logprobs, proximal, packed.advantages, clip_low=settings.clip_low, clip_high=settings.clip_high
        )
        tis = token_tis(proximal, packed.behaviour, settings.tis_cap)  # all 1 when the proximal policy is the behaviour
        per_token = tis * objective - settings.entropy_coef * entropies
        kl = torch.zeros_like(per_token)
        if self.reference is not None:
            with torch.no_grad():
                reference, _ = self.reference(packed, want_entropy=False)
            kl = kl_k3(logprobs, reference)
            per_token = per_token + settings.kl_coef * kl
        loss = (packed.weights * per_token).sum()

        with torch.no_grad():
            real = packed.weights > 0  # the token of an empty micro-batch has weight 0
            drift = (logprobs - packed.behaviour).double()
            lag = (self.version - packed.versions).double()
            columns = {
                "loss": packed.weights * per_token,
                "policy_loss": packed.weights * tis * objective,
                "tokens": torch.ones_like(tis),
                "entropy": entropies,
                "kl": kl,
                "drift": drift,
                "drift_k3": torch.expm1(-drift) + drift,
                "ratio": drift.clamp(-20, 20).exp(),
                "clipped": clipped,
                "tis": tis,
                "tis_cut": (proximal - packed.behaviour).exp() > settings.tis_cap,
                "advantage_abs": packed.advantages.abs(),
                "lag": lag,
                "not_finite": ~torch.isfinite(logprobs) | ~torch.isfinite(per_token),
            }
            sums = torch.stack([columns[name][real].double().sum() for name in SUMS])
            tops = {"ratio": columns["ratio"], "drift_abs": drift.abs(), "lag": lag}
            low = torch.full((1,), -torch.inf, dtype=torch.float64, device=self.device)
            highs = torch.stack([torch.cat([low, tops[name][real]]).max() for name in MAXIMA])
        return loss, sums, highs

    def _grad_norm(self) -> float:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        return float(gather(torch.nn.utils.get_total_norm(grads)))

    def _trouble(self, numbers: dict[str, float]) -> str | None:
        if numbers["not_finite_tokens"] > 0 or not np.isfinite(numbers["loss"]):
            return "non_finite_loss"
        return None if np.isfinite(numbers["grad_norm"]) else "non_finite_gradients"

    def _lr(self) -> float:
        s = self.settings
        return learning_rate(
            self.version, peak=s.lr, warmup_steps=s.warmup_steps, schedule=s.schedule, total_steps=s.schedule_steps
        )

    def _update(self, grad_norm: float) -> None:
        factor = self.settings.grad_clip / (grad_norm + 1e-6)
        if factor < 1.0:
            torch._foreach_mul_([p.grad for p in self.model.parameters() if p.grad is not None], factor)
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.version += 1

    # Weights and state ------------------------------------------------------------------------------------------------

    def publish(self, folder: str | Path, keep: int = 3) -> filesystem.Manifest | None:
        """Hand the current version over through `folder`, in the compute type. The manifest, on rank 0."""
        tensors = self.model.full_tensors(DTYPES[self.settings.dtype])
        if self.rank == 0:
            return filesystem.publish(folder, self.version, tensors, keep=keep)
        for _ in tensors:  # takes part in gathering
            pass
        return None

    def save(self, folder: str | Path, **extra: Any) -> Path | None:
        """Write a checkpoint of this moment under `folder` (`core.checkpoints.store`); commit it after verifying.

        extra: fields of `store.Extra` other than `version`. Answers with the `.written` folder on rank 0.
        """
        weights, optimizer = self.model.full_tensors(), self.optimizer_tensors()
        if self.rank == 0:
            return store.write(
                folder,
                self.version,
                weights=weights,
                optimizer=optimizer,
                random=random_state(self.device),
                extra=store.Extra(version=self.version, **extra),
                model=self.settings.model,
                dtype=self.settings.dtype,
            )
        for _ in chain(weights, optimizer):  # takes part in gathering
            pass
        return None

    def load(self, path: str | Path) -> store.Extra:
        """Continue from the checkpoint at `path`, written with any number of ranks; answers with its extra."""
        loaded = store.load(path)
        self.load_state(loaded.weights, loaded.optimizer, loaded.extra.version)
        if self.rank == 0:
            set_random_state(loaded.random, self.device)
        return loaded.extra

    def optimizer_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Optimizer state, gathered on the CPU, as `<parameter>.<state>`; empty before the first update. Collective."""
        for name, parameter in self.model.named_masters():
            for key, value in sorted(self.optimizer.state.get(parameter, {}).items()):
                yield f"{name}.{key}", gather(value.detach()).cpu()

    @torch.no_grad()
    def load_state(self, weights: dict[str, Tensor], optimizer: dict[str, Tensor], version: int) -> None:
        """Continue from full tensors, as `full_tensors` and `optimizer_tensors` gave them, with any number of ranks."""
        self.model.load_full_tensors(weights)
        self.version = version
        self.optimizer.state.clear()
        if not optimizer:
            return
        for name, parameter in self.model.named_masters():
            state: dict[str, Tensor] = {}
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = torch.zeros_like(parameter)
                scatter_into(state[key], optimizer[f"{name}.{key}"])
            state["step"] = optimizer[f"{name}.step"].to(self.device).clone()
            self.optimizer.state[parameter] = state


def random_state(device: torch.device) -> dict[str, Tensor]:
    """State of torch's generators as uint8 tensors. Steps don't depend on it (they seed their own draws)."""
    state = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """The reverse; a generator of a device that isn't here is passed over."""
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


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
