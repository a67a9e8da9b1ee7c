"""The run's one config: every actor reads the same file and the same resolved values.

A recipe is a TOML file with a table per class below (`configs/demo.toml`); `configs.load` reads it, applies `extends`
and overrides by dotted name, and refuses unknown keys with the nearest known one. Units are in the names.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from configs.evaluation import Evaluation
from configs.judging import Gateway, Judge
from configs.learning import Learner
from configs.rollouts import Rollout, Weights
from configs.section import Section
from core.evaluation.reward import highest, success
from core.identity import digest_json

_HOME = Path(__file__).resolve().parents[1]
"""Where the code is, and the policies that come with it."""


class Run(Section):
    name: str = Field(
        default="run",
        pattern=r"^[a-z0-9][a-z0-9-]{0,40}$",
        json_schema_extra={"wanted": "1 to 41 of a-z, 0-9 and '-', the first no '-'"},
    )
    """Names the run's folder and prefixes its streams; lower-case letters, digits and '-'."""
    folder: str = "runs"
    """Where run folders are made; this run's is folder/name."""
    seed: int = 0
    """Every draw of the run is derived from it."""
    steps: int = Field(default=100, ge=1, le=10**9)
    """Optimizer updates until the run is finished."""


class Bus(Section):
    url: str = ""
    """A running nats-server, e.g. nats://broker:4222. Empty: the supervisor starts one of its own in the run folder."""
    token: str = ""
    """Token of that server; NATS_TOKEN in the environment wins. The embedded server makes a random one."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port of the embedded server on loopback; 0 takes a free one."""
    monitor_port: int = Field(default=0, ge=0, le=65535)
    """Port of the embedded server's monitoring page on loopback; 0 takes a free one."""
    connect_s: float = Field(default=30.0, gt=0)
    """An actor that can't reach the broker at its start gives up after this; later it reconnects for ever."""
    ack_wait_s: float = Field(default=60.0, ge=2.0)
    """Work that nobody beats for this long is redelivered; workers beat three times in it."""
    beat_s: float = Field(default=2.0, gt=0)
    """How often an actor says that it is alive."""
    dead_after_s: float = Field(default=7.0, gt=0)
    """An actor without a beat for this long counts as dead; its deliveries are handed on."""
    max_worker_deaths: int = Field(default=3, ge=1)
    """Work that was in the hands of this many workers when they died is poison: given up and recorded."""

    @model_validator(mode="after")
    def _beats_fit(self) -> "Bus":
        if self.dead_after_s < 2 * self.beat_s:
            raise ValueError(f"dead_after_s = {self.dead_after_s} must be at least twice beat_s = {self.beat_s}")
        return self


class Model(Section):
    path: str
    """A Hugging Face model folder (config, safetensors, tokenizer with chat template), or a hub name."""
    revision: str = ""
    """Pinned hub revision; empty for a local folder."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Compute type in learner and engine; master weights are float32."""
    context_tokens: int = Field(default=0, ge=0)
    """Longest prompt + completion; 0 takes the model's own limit."""


class TaskSource(Section):
    """One source of tasks; several are concatenated."""

    kind: Literal["starter", "composed", "folder", "jsonl", "huggingface"]
    path: str = ""
    """Folder, file or data set name, for the kinds that need one."""
    revision: str = ""
    """Pinned revision, for `huggingface`."""
    split: Literal["train", "heldout", "all"] = "all"
    """Which side of the split by operator structure."""
    levels: tuple[int, ...] = ()
    """Only these levels; empty takes all."""
    count: int = Field(default=0, ge=0)
    """How many; for `composed` how many to make, elsewhere 0 takes all."""
    seed: int = 0
    """Of the generator, or of the choice when `count` takes a part."""

    @model_validator(mode="after")
    def _complete(self) -> "TaskSource":
        if self.kind in ("folder", "jsonl", "huggingface") and not self.path:
            raise ValueError(f"a task source of kind {self.kind!r} needs a path")
        if self.kind == "composed" and not self.count:
            raise ValueError("a task source of kind 'composed' needs a count")
        return self


class Tasks(Section):
    train: tuple[TaskSource, ...] = (TaskSource(kind="starter", split="train"),)
    heldout: tuple[TaskSource, ...] = (TaskSource(kind="starter", split="heldout"),)
    backend: Literal["triton", "cuda"] = "triton"
    """What the policy is asked to write."""
    degenerate: Literal["refuse", "keep"] = "refuse"
    """Training tasks that accept zeros, a constant, a stale output or an input as right (`kernelmill audit`): refuse
    leaves them out, and audits each task of a foreign source before its first admission."""
    refused: Literal["stop", "skip"] = "stop"
    """Files and rows of a source that are not tasks: stop refuses to start, skip leaves them out, says how many and why
    of the first, and records it. Of a source, at least one task must be left."""


class Sampler(Section):
    groups_per_step: int = Field(default=8, ge=1)
    """Groups that one optimizer update trains on."""
    group_size: int = Field(default=8, ge=1)
    """Episodes of one task that are compared with each other."""
    max_staleness: int = Field(default=2, ge=0)
    """Most policy versions between a training step and the oldest token that it trains on; 0 is synchronous."""
    window: int = Field(default=0, ge=0)
    """How far groups may overtake a straggler (`core.flow.collector`); 0: groups_per_step, first in, first out, with
    staleness at most max_staleness. More trades staleness, (window - 1) // groups_per_step at most, for throughput."""
    order: Literal["shuffled", "sequential"] = "shuffled"
    give_up_after_rejected: int = Field(default=64, ge=1)
    """So many groups in a row without anything to train on end the run."""


class Episodes(Section):
    max_turns: int = Field(default=3, ge=1)
    credit: Literal["turn", "trajectory"] = "turn"
    """turn: every turn is a sample with R_t = Σ_{i≥t} γ^(i-t) s_i. trajectory: one sample with R = Σ γ^t s_t."""
    gamma: float = Field(default=0.4, ge=0, le=1)
    success_score: float | Literal["never"] | None = None
    """A turn that scores this much ends the episode; never: none does. Unset: what a kernel scores by `reward.shape`
    that is twice as fast (graded 1.3, kevin 2.3), or at the last step (milestone 3, threshold 1)."""
    zero_turns: int = Field(default=2, ge=0)
    """So many zero-scored turns in a row end the episode; 0 turns this off."""
    deadline_s: float = Field(default=900.0, gt=0)
    """An episode that takes longer becomes a tombstone, so that the window always moves."""
    prompt: Literal["kernelbench", "compact", "kernelllm"] = "kernelbench"
    """Wording of the prompts; compact: for small policies that were taught it; kernelllm: a plain completion prompt."""
    history: Literal["whole", "compressed"] = "whole"
    """compressed: above history_tokens keep the best and the last attempt whole, a line for each other."""
    history_tokens: int = Field(default=0, ge=0)
    """Most tokens of a later turn's prompt with a compressed history; 0: what the context leaves."""
    thinking: bool = False
    """For chat templates that know it."""

    @model_validator(mode="after")
    def _one_history(self) -> "Episodes":
        if self.history_tokens and self.history == "whole":
            raise ValueError(f"history_tokens = {self.history_tokens} bounds a compressed history: set that, or 0")
        return self


class Reward(Section):
    shape: Literal["graded", "kevin", "milestone", "threshold"] = "graded"
    """graded: 0.1 compiled, 0.3 correct, + clip(speedup - 1, 0, 2). kevin: 0.3·correct + speedup.
    milestone: -1 wrong, 1 correct, 2 and 3 by bars (docs/episodes.md). threshold: 1 when correct and speedup ≥
    `threshold`."""
    compiled: float = 0.1
    correct: float = 0.3
    speed_cap: float = Field(default=2.0, ge=0)
    threshold: float = 1.0


class Checkpoints(Section):
    every_steps: int = Field(default=10, ge=1)
    keep: int = Field(default=2, ge=1)
    """Committed checkpoints that stay; the last one is always kept."""


class Recorder(Section):
    wandb: Literal["auto", "offline", "online", "disabled"] = "auto"
    """auto: online with a key in the environment, else offline."""
    project: str = "kernelmill"


class Local(Section):
    """What `kernelmill up` starts on this machine."""

    generators: int = Field(default=1, ge=0)
    evaluators: int = Field(default=1, ge=0)
    gateways: int = Field(default=0, ge=0, le=1)
    """1 starts the HTTP gateway in front of this run's evaluators."""
    restart_after_s: float = Field(default=0.5, ge=0)
    """Pause before an actor that died is started again; doubles with each death in a row, up to 10 s."""
    give_up_after: int = Field(default=6, ge=1)
    """An actor that dies so many times within 20 s of its start ends the run."""


class RunConfig(Section):
    """The whole of it."""

    run: Run = Run()
    bus: Bus = Bus()
    model: Model
    tasks: Tasks = Tasks()
    sampler: Sampler = Sampler()
    episodes: Episodes = Episodes()
    reward: Reward = Reward()
    rollout: Rollout = Rollout()
    judge: Judge = Judge()
    learner: Learner = Learner()
    weights: Weights = Weights()
    checkpoints: Checkpoints = Checkpoints()
    recorder: Recorder = Recorder()
    evaluation: Evaluation = Evaluation()
    gateway: Gateway = Gateway()
    local: Local = Local()

    @model_validator(mode="after")
    def _possible(self) -> "RunConfig":
        if self.judge.speed == "measured" and self.judge.device_class == "cpu":
            raise ValueError("judge.speed = 'measured' needs a GPU: set judge.device_class, or speed = 'modelled'")
        if self.judge.speed == "modelled" and self.judge.device_class != "cpu":
            raise ValueError(
                f"judge.device_class = {self.judge.device_class!r} measures: set judge.speed = 'measured', or 'none'"
            )
        if self.tasks.backend == "cuda" and self.judge.target.startswith("hip"):
            raise ValueError(
                f"tasks.backend = 'cuda' is compiled by nvcc, but judge.target = {self.judge.target!r}: set one "
                f"like cuda:90, or backend = 'triton'"
            )
        if self.learner.baseline != "none" and self.sampler.group_size < 2:
            raise ValueError(
                f"learner.baseline = {self.learner.baseline!r} compares within a group, but sampler.group_size = "
                f"{self.sampler.group_size}: use 2 or more, or baseline = 'none'"
            )
        if self.learner.baseline == "maxrl" and self.reward.shape == "milestone":
            raise ValueError(
                "learner.baseline = 'maxrl' wants rewards of at least 0, reward.shape = 'milestone' goes to -1: use "
                "another of the two"
            )
        if self.learner.overlong_buffer_tokens > self.rollout.max_new_tokens:
            raise ValueError(
                f"learner.overlong_buffer_tokens = {self.learner.overlong_buffer_tokens} must be at most "
                f"rollout.max_new_tokens = {self.rollout.max_new_tokens}"
            )
        if 0 < self.model.context_tokens <= self.rollout.max_new_tokens:
            raise ValueError(
                f"model.context_tokens = {self.model.context_tokens} holds prompt and answer, so it must be more than "
                f"rollout.max_new_tokens = {self.rollout.max_new_tokens}; 0 takes the model's own limit"
            )
        if 0 < self.sampler.window < self.sampler.groups_per_step:
            raise ValueError(
                f"sampler.window = {self.sampler.window} is below groups_per_step = {self.sampler.groups_per_step}"
            )
        if self.weights.transport == "adapter" and (not self.learner.lora_rank or self.learner.quantize != "none"):
            raise ValueError(
                f"weights.transport = 'adapter' sends adapters for the weights in model.path, but learner.lora_rank = "
                f"{self.learner.lora_rank}, quantize = {self.learner.quantize!r}: set lora_rank and quantize = 'none', "
                f"or another transport"
            )
        if self.weights.transport in ("ipc", "nccl"):
            if self.rollout.engine != "vllm":
                raise ValueError(
                    f"weights.transport = {self.weights.transport!r} is for rollout.engine = 'vllm'; the "
                    f"{self.rollout.engine} engine reads folders: set weights.transport = 'filesystem'"
                )
            if self.learner.device == "cpu":
                raise ValueError(
                    f"weights.transport = {self.weights.transport!r} needs a learner on a GPU, but learner.device = "
                    f"'cpu': set weights.transport = 'filesystem'"
                )
        if self.rollout.temperature == 0:
            raise ValueError("rollout.temperature = 0 can't be trained on: every sample of a group would be the same")
        if self.rollout.engine == "vllm" and self.rollout.temperature < 0.01:
            raise ValueError(
                f"rollout.temperature = {self.rollout.temperature}: vLLM samples at 0.01 at least, while the learner "
                f"would score at what was asked for; set it to 0.01 or more"
            )
        if self.rollout.top_k == 1:
            raise ValueError(
                "rollout.top_k = 1 can't be trained on: every sample of a group would be the same; 0 takes all tokens"
            )
        return self

    @model_validator(mode="after")
    def _success_is_reached(self) -> "RunConfig":
        """Unset, it is filled in, so that the resolved config says what holds."""
        given, reward = self.episodes.success_score, self.reward.model_dump()
        if given is None:
            episodes = self.episodes.model_copy(update={"success_score": success(**reward)})
            self.__dict__["episodes"] = episodes  # frozen for all but us
        elif given != "never" and given > (most := highest(**reward)):
            raise ValueError(
                f"episodes.success_score = {given:g} is never reached: reward.shape = {self.reward.shape!r} scores "
                f"{most:g} at most; leave it out ({success(**reward):g}), or set 'never'"
            )
        return self

    @property
    def credits(self) -> int:
        """Groups that may be admitted and neither trained nor rejected."""
        return (self.sampler.max_staleness + 1) * self.sampler.groups_per_step

    @property
    def staleness_bound(self) -> int:
        """Most versions that a trained token can be old, by credits and window (`core.flow.collector`)."""
        sampler = self.sampler
        return sampler.max_staleness + ((sampler.window or sampler.groups_per_step) - 1) // sampler.groups_per_step

    def identity(self) -> dict[str, Any]:
        """What defines the run: an actor that means something else may not join."""
        chosen = self.model_dump(
            mode="json",
            include={
                "run": {"name", "seed"},
                "model": True,
                "tasks": True,
                "sampler": {"groups_per_step", "group_size", "max_staleness", "window", "order"},
                "episodes": True,
                "reward": True,
                "rollout": {"max_new_tokens", "temperature", "top_p", "top_k"},
            },
        )
        path = Path(self.model.path)
        if path.is_absolute() and path.is_relative_to(_HOME):  # the same folder, wherever it was named from
            chosen["model"]["path"] = str(path.relative_to(_HOME))
        return {**chosen, "judge": self.judge.identity()}

    def identity_hash(self) -> str:
        return digest_json(self.identity(), size=8)


class SftConfig(Section):
    """`kernelmill sft`: supervised training that makes the policy which reinforcement starts from."""

    class Data(Section):
        kind: Literal["composed", "jsonl"] = "composed"
        path: str = ""
        count: int = Field(default=60000, ge=1)
        seed: int = Field(default=0, ge=0, lt=2**63)
        mistakes: float = Field(default=0.0, ge=0, le=1)
        """Share of first turns that carry one planted mistake."""
        repair_mistakes: float = Field(default=0.0, ge=0, le=1)
        """Share of second turns that still carry one."""
        second_turns: float = Field(default=0.0, ge=0, le=1)
        """Share of examples that are second turns: task, failed kernel, feedback, answer."""
        staged: float = Field(default=0.0, ge=0, le=1)
        """Share of kernels in the slow style: an intermediate goes to memory and back."""
        slow_turns: float = Field(default=0.0, ge=0, le=1)
        """Share of examples that are second turns after a right but slow kernel; the answer is the fast one."""
        feedback: str = "configs/demo-feedback.json"
        """What the judge said to each kind of mistake (`python -m core.training.sft_feedback` records it)."""

    class Architecture(Section):
        """For a policy from scratch; absent when `model` names one to continue from."""

        vocab: int = Field(default=512, ge=260, le=2**20)
        """At least all bytes and four control tokens."""
        hidden: int = Field(default=192, ge=1)
        layers: int = Field(default=4, ge=1)
        heads: int = Field(default=4, ge=1)
        kv_heads: int = Field(default=2, ge=1)
        """Divides `heads`."""
        head_dim: int = Field(default=48, ge=2, multiple_of=2)
        """Even, since positions turn pairs of it; heads * head_dim need not be `hidden`."""
        intermediate: int = Field(default=512, ge=1)
        context_tokens: int = Field(default=1024, ge=1)

        @model_validator(mode="after")
        def _check_heads(self) -> "SftConfig.Architecture":
            if self.heads % self.kv_heads:
                raise ValueError(f"kv_heads = {self.kv_heads} must divide heads = {self.heads}")
            return self

        def parameters(self) -> int:
            """About; without norms."""
            attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
            return self.vocab * self.hidden + self.layers * (attention + 3 * self.hidden * self.intermediate)

    out: str
    """Folder of the policy that is made."""
    model: str = ""
    """Policy to continue from; empty builds one from `architecture`."""
    architecture: Architecture = Architecture()
    data: Data = Data()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = Field(default=0, ge=0, lt=2**63)
    steps: int = Field(default=2000, ge=1)
    rows_per_step: int = Field(default=128, ge=1)
    lr: float = Field(default=3e-3, gt=0, le=1)
    warmup_steps: int = Field(default=50, ge=0)
    weight_decay: float = Field(default=0.01, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)
