"""The tables about rollouts and how weights reach them (docs/rollout.md); `configs.schema` is the whole."""

from typing import Any, Literal

from pydantic import Field, model_validator

from configs.section import Section


class VLLM(Section):
    """How the vLLM engine runs (`core.generation.vllm_engine.VLLMSettings`)."""

    tensor_parallel: int = Field(default=1, ge=1)
    """Cards (or processes, on the CPU) that hold the model together."""
    gpu_memory: float = Field(default=0.85, gt=0, le=1)
    """Share of each card that vLLM takes for weights and cache; less where the card is shared. So much must be free
    when it starts."""
    cache_gb: float = Field(default=0.0, ge=0)
    """Size of the cache in GB (10^9 bytes) on each card; 0: what gpu_memory leaves. vLLM finds that out by watching the
    card's free memory while it starts, and fails when another process gives memory back meanwhile: say a size where the
    card is shared."""
    max_sequences: int = Field(default=256, ge=1)
    """Most sequences in one step; more wait their turn."""
    eager: bool = False
    """Skip compilation and CUDA graphs: starts sooner, decodes slower."""
    prefix_cache: bool = True
    restarts: int = Field(default=3, ge=0)
    """How often a core that died is started again before the generator gives up."""
    stage_timeout_s: float = Field(default=300.0, gt=0)
    """For receiving weights beside generation."""
    swap_timeout_s: float = Field(default=60.0, gt=0)
    """For everything while generation is paused."""
    silent_timeout_s: float = Field(default=60.0, gt=0)
    """A core that sends nothing for so long while requests run, and then gives no answer for as long, is ended and
    started again."""
    extra: dict[str, Any] = Field(default={})
    """More fields of vLLM's AsyncEngineArgs."""


class Rollout(Section):
    engine: Literal["transformers", "vllm"] = "vllm"
    vllm: VLLM = VLLM()
    cards: tuple[int, ...] = ()
    """Cards of this machine that generators take, vllm.tensor_parallel each, in turn by the number that ends their
    name; empty: whatever the process sees. The learner takes the first ones."""
    max_new_tokens: int = Field(default=4096, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=10)
    """The learner scores at it as well: log-probs, entropies and KL are of the distribution that is sampled from.
    Above 10, tokens would be drawn nearly at random."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """Draw from this many most probable tokens alone, of which top_p then takes its share; 0: all. Either cuts tokens
    off that the policy could have sampled; log-probs are those of what is left, which the learner's are not."""
    groups_in_flight: int = Field(default=8, ge=1)
    """Groups that one generator plays at once."""
    batch_rows: int = Field(default=64, ge=1)
    """Most sequences that the transformers engine decodes at once."""
    threads: int = Field(default=0, ge=0)
    """Torch threads; 0 leaves it to torch."""
    verdict_timeout_s: float = Field(default=300.0, gt=0)
    """A verdict that takes longer ends the episode with a tombstone."""
    parity_max_abs: float | None = Field(default=None, ge=0)
    """A generator that starts compares its engine's log-probs with the model's own under transformers, on the CPU: a
    single token may differ by so much, in nats. Absent: by model.dtype (`core.generation.parity.THRESHOLDS`)."""
    parity_mean_share: float | None = Field(default=None, ge=0)
    """And the mean difference may be this share of the mean of 1 - p, p being the sampled tokens' probabilities; 0 for
    both turns the probe off."""
    heldout_hold_s: float = Field(default=120.0, ge=0)
    """Held-out requests are of one version: new weights wait so long for them."""

    @model_validator(mode="after")
    def _cards_fit(self) -> "Rollout":
        if len(set(self.cards)) < len(self.cards) or any(card < 0 for card in self.cards):
            raise ValueError(f"cards = {list(self.cards)}: a card is named twice, or is no number from 0 on")
        if self.cards and len(self.cards) < self.vllm.tensor_parallel:
            raise ValueError(
                f"cards = {list(self.cards)}: a generator with vllm.tensor_parallel = {self.vllm.tensor_parallel} "
                f"needs {self.vllm.tensor_parallel} cards"
            )
        return self

    def cards_of(self, name: str) -> tuple[int, ...]:
        """The cards of the generator of that name (`generator-1`)."""
        tail = name.rpartition("-")[2]
        size = self.vllm.tensor_parallel
        places = len(self.cards) // size
        first = (int(tail) if tail.isdigit() else 0) % places * size if places else 0
        return self.cards[first : first + size]

    @model_validator(mode="after")
    def _one_probe(self) -> "Rollout":
        both = (self.parity_max_abs, self.parity_mean_share)
        if (None in both or 0 in both) and both[0] != both[1]:
            raise ValueError(
                f"parity_max_abs = {both[0]} and parity_mean_share = {both[1]}: set both, leave both out, or set both "
                f"to 0 for no probe"
            )
        return self


class Weights(Section):
    transport: Literal["filesystem", "ipc", "nccl", "adapter"] = "filesystem"
    """filesystem: through `folder`. ipc: learner and engine share one card. nccl: between cards and hosts. adapter: the
    learner trains adapters (learner.lora_rank), they alone travel, over the bus, and engines add them to model.path. A
    whole copy still goes to `folder`, beside the next step, for generators that can't use the faster way."""
    folder: str = ""
    """Where weights are handed over: below folder/run name (a shared folder, or /dev/shm on one machine); empty: run
    folder/weights."""
    host: str = ""
    """nccl: where generators reach the learner; empty: loopback under `kernelmill up`, else this host's name."""
    ports: tuple[int, int] = (0, 0)
    """nccl: first and last port that the learner may open; 0, 0 takes a free one."""
    keep: int = Field(default=3, ge=2)
    """Versions that stay on disk."""
    apply_timeout_s: float = Field(default=120.0, gt=0)
    """A generator that does not answer with the fingerprint in this time no longer holds credits back; one that can't
    have a policy's weights for so long ends."""

    @model_validator(mode="after")
    def _ports_fit(self) -> "Weights":
        first, last = self.ports
        if not (0 < first <= last <= 65535) and self.ports != (0, 0):
            raise ValueError(f"ports = [{first}, {last}]: wanted 1 <= first <= last <= 65535, or 0, 0")
        if self.transport != "nccl" and (self.host or self.ports != (0, 0)):
            raise ValueError(
                f"host and ports are for transport = 'nccl', but transport = {self.transport!r}, host = {self.host!r}, "
                f"ports = [{first}, {last}]: leave them out, or set that"
            )
        return self
