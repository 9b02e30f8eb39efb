"""The sections of the configuration: every knob with its default and what it means.

`docs/configuration.md` is generated from these.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Aggregation = Literal["token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
KlEstimator = Literal["k1", "abs", "k2", "k3", "k1+", "k3+"]
CorrectionName = Literal["none", "token_tis", "icepop", "sequence_tis", "sequence_rejection", "token_rejection"]
Held = Literal["layer", "weights", "gradients"]


class Section(BaseModel):
    """A group of knobs; immutable, and closed to names it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TinyModelConfig(Section):
    """Architecture of the model that is built on the spot (`model.base: tiny`)."""

    hidden: int = Field(96, ge=1, description="width of the language model")
    layers: int = Field(2, ge=1, description="language model layers")
    heads: int = Field(2, ge=1, description="attention heads")
    mlp: int = Field(288, ge=1, description="width of the feed-forward layer")
    vision_hidden: int = Field(64, ge=1, description="width of the vision tower")
    vision_depth: int = Field(1, ge=1, description="vision tower blocks")
    merges: int = Field(600, ge=1, description="byte-pair merges learned by the tokenizer")
    vision_steps: int = Field(70, ge=0, description="vision pre-training steps")
    grounding_steps: int = Field(110, ge=0, description="grounding pre-training steps")


class ModelConfig(Section):
    """Which vision-language model, and how it is held."""

    base: str = Field("tiny", description="`tiny`, a Hugging Face hub id, or the folder of a saved model")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="dtype of weights and activations")
    device: str = Field("auto", description="`auto`, `cpu`, `cuda` or `cuda:N`")
    threads: int = Field(0, ge=0, description="CPU threads for torch; 0 takes all cores")
    max_pixels: int = Field(1_003_520, ge=1, description="screenshots above this many pixels are scaled down")
    vision: Literal["frozen", "trained"] = Field("frozen", description="whether training changes the vision tower")
    lora_rank: int = Field(
        0, ge=0, description="rank of LoRA adapters on the language model; 0 trains all of its weights"
    )
    lora_alpha: int = Field(32, gt=0, description="scale of the adapters, divided by their rank")
    checkpointing: bool = Field(False, description="compute activations again in the backward pass instead of keeping")
    compile: bool = Field(False, description="compile the layers; needs `bucket`, or each length is compiled anew")
    bucket: int = Field(1, ge=1, description="packed rows are filled up to a multiple of this many tokens")
    attention: Literal["auto", "cudnn", "flash", "sdpa"] = Field(
        "auto", description="kernel of packed attention; `auto`: cuDNN from Hopper on, flash on older GPUs, else sdpa"
    )
    tiny: TinyModelConfig = TinyModelConfig()


class PromptConfig(Section):
    """How an episode is put into words."""

    action_space: Literal["computer_use", "pyautogui", "sendkey"] = Field("computer_use", description="action space")
    sections: tuple[str, ...] = Field(
        ("domain", "task", "accessibility_tree", "terminal", "last_result"),
        description="sections of an observation turn, in order",
    )
    accessibility_chars: int = Field(4096, ge=0, description="the accessibility tree is cut at this many characters")
    window: int = Field(0, ge=0, description="newest screenshots that a cut prompt keeps; 0 never cuts")
    slack: int = Field(4, ge=0, description="screenshots beyond the window that a prompt grows to before it is cut")


class EnvConfig(Section):
    """The desktop and its tasks."""

    backend: Literal["simulated", "remote"] = Field(
        "simulated",
        description="`simulated`: in this process; `remote`: behind env servers (`flywheel desktops serve`)",
    )
    urls: str = Field("http://127.0.0.1:8100", description="env servers of the remote backend, separated by commas")
    image: Literal["raw", "png", "webp", "jpeg"] = Field("png", description="codec of screenshots of remote desktops")
    wait_seconds: float = Field(1800.0, gt=0, description="how long an episode may wait for a free remote desktop")
    width: int = Field(160, ge=1, description="screen width, pixels")
    height: int = Field(128, ge=1, description="screen height, pixels")
    layout: Literal["roomy", "free"] = Field("roomy", description="`roomy`: one widget a cell; `free`: anywhere")
    families: tuple[str, ...] = Field((), description="task families; empty takes all")
    levels: tuple[int, ...] = Field((1, 2, 3, 4), description="difficulty levels")
    max_turns: int = Field(8, ge=1, description="turns before an episode is truncated")
    accessibility: bool = Field(False, description="put the accessibility tree into observations")


class TasksConfig(Section):
    """Which tasks there are, and how many each split holds."""

    source: str = Field(
        "",
        description="`offline` (the pack of real applications), or a file or folder; empty generates simulated tasks",
    )
    train: int = Field(2000, ge=1, description="training tasks")
    heldout: int = Field(500, ge=1, description="held-out tasks")
    demonstrations: int = Field(90, ge=0, description="training tasks with a scripted demonstration")


class SftConfig(Section):
    """Supervised fine-tuning."""

    lr: float = Field(5e-6, gt=0, description="peak learning rate")
    min_lr: float = Field(5e-7, ge=0, description="learning rate at the end of the cosine")
    warmup: float = Field(0.1, ge=0, le=1, description="share of steps spent warming up")
    weight_decay: float = Field(0.1, ge=0, description="AdamW weight decay")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW betas")
    steps: int = Field(300, ge=1, description="optimiser steps of the alignment stage")
    batch: int = Field(32, ge=1, description="trajectories a step")
    pack_tokens: int = Field(8192, ge=1, description="tokens in one packed row")
    processes: int = Field(
        0,
        ge=0,
        description="processes that share the weights by FSDP2, one a GPU, with float32 master weights; 0 does without",
    )
    held: Held = Field(
        "layer",
        description="what of a sharded model each process holds whole through a step: a layer; all weights, 2 bytes a "
        "parameter more; gradients too, 4 more",
    )
    grad_clip: float = Field(1.0, gt=0, description="gradient norm limit")
    save_every: int = Field(0, ge=0, description="steps between resumable saves; 0 saves at the end only")
    mix: str = Field("", description="folder of general conversations to mix in; empty mixes none in")
    mix_share: float = Field(0.2, ge=0, lt=1, description="share of the set that the general conversations make up")
    reading: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the set that is rows again, told their solution: it teaches to read hindsight",
    )


class RolloutConfig(Section):
    """Collecting the student's own trajectories."""

    engine: Literal["local", "sglang"] = Field(
        "local", description="who answers for the policy: the model in this process, or an sglang server"
    )
    tasks: int = Field(320, ge=1, description="tasks an iteration")
    samples: int = Field(2, ge=1, description="episodes a task")
    temperature: float = Field(1.0, ge=0, description="sampling temperature")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus mass")
    max_tokens: int = Field(64, ge=1, description="tokens a completion may have")
    concurrency: int = Field(128, ge=1, description="desktops played at once")
    workers: int = Field(0, ge=0, description="processes that share the episodes; 0 takes one a core")


class ServerConfig(Section):
    """A server that answers for a model."""

    url: str = Field("http://127.0.0.1:30000", description="address")
    key: str = Field("", description="environment variable that holds the token; none is sent without")
    timeout: float = Field(120.0, gt=0, description="seconds that one answer may take")
    patience: float = Field(300.0, ge=0, description="seconds for which a busy server is asked again")


class SglangConfig(ServerConfig):
    """The sglang server that plays (`rollout.engine: sglang`), which reads weights from folders of this machine."""

    url: str = Field("http://127.0.0.1:30000", description="its address")
    key: str = Field("SGLANG_API_KEY", description="environment variable that holds its token; none is sent without")


class HostedConfig(ServerConfig):
    """A model behind the OpenAI protocol: teacher (`flywheel.bootstrap: hosted`) and outcome judge."""

    url: str = Field("http://127.0.0.1:30000/v1", description="address of the protocol, up to `/v1`")
    model: str = Field("default", description="name that the server knows the model by; also its policy version")
    key: str = Field("OPENAI_API_KEY", description="environment variable that holds the token; none is sent without")
    max_tokens: int = Field(1024, ge=1, description="tokens that an answer may have")
    concurrency: int = Field(8, ge=1, description="episodes at once")


class JudgeConfig(Section):
    """Verdicts of a model on episodes of tasks that have no evaluator."""

    enabled: bool = Field(False, description="have such episodes judged, and learn from those that are accepted")
    policy: str = Field(
        "",
        description="who judges: a policy of this experiment or a folder, held in the process; empty: the hosted model",
    )
    votes: int = Field(3, ge=1, description="answers to one question")
    max_tokens: int = Field(1024, ge=1, description="tokens that an answer may have")
    accept: float = Field(0.6, ge=0, le=1, description="share of votes for success from which an episode is accepted")
    screenshots: int = Field(3, ge=1, description="last screenshots that the judge is shown")
    temperature: float = Field(0.7, ge=0, description="sampling temperature of the votes")


class FlywheelConfig(Section):
    """The loop: roll out, keep successes, train on them, evaluate; until success stops rising."""

    max_iterations: int = Field(12, ge=0, description="never more than this many")
    min_iterations: int = Field(3, ge=0, description="never stop before this many")
    patience: int = Field(3, ge=0, description="iterations without improvement before it stops")
    min_delta: float = Field(0.02, ge=0, description="mean gain that counts as improvement whatever its error")
    success_threshold: float = Field(0.5, ge=0, le=1, description="task reward from which a trajectory is kept")
    min_successes: int = Field(16, ge=0, description="fewer successes than this stop the iteration")
    max_collapse: float = Field(0.15, ge=0, description="fall of success against the best that blocks the next one")
    pool: Literal["all", "latest"] = Field("all", description="train on successes of all iterations or the latest")
    demonstrations: bool = Field(True, description="mix the demonstrations into every iteration's training set")
    bootstrap: str = Field(
        "",
        description="teacher where the student solves too little: `script`, `hosted`, a checkpoint; empty: nobody",
    )
    bootstrap_below: int = Field(1, ge=1, description="fewer successes of an iteration than this call the teacher")
    bootstrap_temperature: float = Field(0.7, ge=0, description="sampling temperature of the teacher")
    per_task: int = Field(2, ge=0, description="at most this many successes of one task in a set; 0 keeps all")
    steps: int = Field(300, ge=1, description="optimiser steps an iteration")
    init: Literal["previous", "base"] = Field("previous", description="what an iteration's training starts from")


class SdpoConfig(Section):
    """Self-distillation (`rl.algorithm: sdpo`)."""

    alpha: float = Field(0.5, ge=0, le=1, description="0 forward KL, 1 reverse KL, between them Jensen-Shannon")
    top_k: int = Field(100, ge=1, description="student's likeliest tokens that are compared; the rest is one bucket")
    importance_clip: float = Field(2.0, gt=0, description="limit of the ratio to the policy that sampled")
    teacher: Literal["ema", "trust_region"] = Field(
        "ema", description="moving average of the student, or the start mixed with the student"
    )
    teacher_rate: float = Field(0.05, ge=0, le=1, description="share of the student taken in a step, or in the mix")
    feedback: bool = Field(True, description="tell failures that have no solution how they ended")
    feedback_chars: int = Field(
        4096, ge=0, description="changes of the accessibility tree are cut at so many characters"
    )
    reading_steps: int = Field(
        0, ge=0, description="steps an update in which the teacher practises reading hindsight, for models that cannot"
    )
    reading_updates: int = Field(0, ge=0, description="updates that it only practises, before it teaches")


class GuardsConfig(Section):
    """What policy gradient watches at every update, and from where it warns and acts (docs/guards.md)."""

    enabled: bool = Field(True, description="watch, and act")
    window: int = Field(5, ge=1, description="updates that noisy figures are averaged over; together one evaluation")
    entropy_warn: float = Field(0.5, description="entropy against its start: below this it warns")
    entropy_react: float = Field(0.3, description="below this: half the learning rate, a higher upper clip, a KL term")
    entropy_collapse: float = Field(0.15, description="below this: the best state again, and one Entropulse round")
    distinct_actions: float = Field(1.5, description="ways of acting in an unsolved group; fewer count as collapse")
    grad_warn: float = Field(5.0, description="gradient norm against its running median: above this it warns")
    grad_react: float = Field(20.0, description="above this the step is skipped")
    grad_skips: int = Field(2, description="more skips among the last 20 steps: the best state, half the learning rate")
    zero_variance_warn: float = Field(0.5, description="share of groups without spread; above it more are played")
    zero_variance_react: float = Field(0.9, description="above this for three updates the run pauses")
    ref_kl_warn: float = Field(0.05, description="k3 to the reference (nats); above it the KL coefficient doubles")
    ref_kl_react: float = Field(0.2, description="above this the reference moves, if evaluation confirms a gain")
    mismatch_warn: float = Field(0.05, description="mean gap of logprobs of engine and trainer that is corrected")
    mismatch_react: float = Field(0.1, description="above this the run pauses: the engine is to be checked")
    truncated: float = Field(0.2, description="share of episodes without an end, above which turns are capped")
    unparsed: float = Field(0.1, description="share of unreadable turns, above which a round of SFT follows")
    repeated: float = Field(0.1, description="share of turns that repeat the one before, above which the run pauses")
    rise: float = Field(1.5, ge=0, description="those three shares count only above so many times their start")
    shaping_gain: float = Field(0.05, description="rise of shaped over task reward, above which shaping is halved")
    shaping_evaluations: int = Field(5, ge=2, description="evaluations over which that rise is taken")
    env_errors: float = Field(0.05, description="share of episodes lost to the environment, above which it warns")
    kl: float = Field(1e-3, description="KL coefficient that falling entropy switches on")
    clip_raise: float = Field(1.4, ge=1, description="factor on the upper clip when entropy falls")
    entropulse_steps: int = Field(30, ge=1, description="optimiser steps of an Entropulse round")
    restores: int = Field(2, ge=0, description="times that the best state is restored before the run pauses instead")


class RlConfig(Section):
    """Policy gradient."""

    algorithm: str = Field("gspo", description="name in the table of algorithms")
    lr: float = Field(5e-7, gt=0, description="constant learning rate")
    betas: tuple[float, float] = Field((0.9, 0.98), description="Adam betas")
    steps: int = Field(40, ge=1, description="updates")
    prompts: int = Field(24, ge=1, description="tasks an update")
    group: int = Field(8, ge=1, description="episodes a task")
    epochs: int = Field(1, ge=1, description="optimiser passes over one batch of rollouts")
    minibatches: int = Field(1, ge=1, description="optimiser steps a pass")
    processes: int = Field(
        0,
        ge=0,
        description="processes that share updates and weights, as `sft.processes` do; the first plays; 0 does without",
    )
    clip_low: float | None = Field(None, description="lower clip; empty takes the algorithm's own")
    clip_high: float | None = Field(None, description="upper clip; empty takes the algorithm's own")
    sequence_clip_low: float | None = Field(
        None, description="the same for algorithms that clip a ratio of whole sequences (GSPO), and for no others"
    )
    sequence_clip_high: float | None = Field(None, description="its upper counterpart")
    aggregation: Aggregation | None = Field(
        None, description="how tokens become one loss; empty takes the algorithm's own"
    )
    kl: float = Field(0.0, ge=0, description="coefficient of the KL term to the policy of the start")
    kl_estimator: KlEstimator = Field(
        "k3", description="estimator of that KL; `+` has the value of k1 or k3 and the gradient of k2"
    )
    entropy: float = Field(0.0, ge=0, description="entropy bonus")
    correction: CorrectionName | None = Field(
        None,
        description="what is done where trainer and engine disagree on sampled tokens; empty takes the algorithm's own",
    )
    correction_low: float | None = Field(None, description="its lower bound on the ratio; empty takes its own")
    correction_high: float | None = Field(None, description="its upper bound on the ratio; empty takes its own")
    critic_lr: float = Field(3e-3, gt=0, description="learning rate of a critic's head")
    critic_steps: int = Field(60, ge=0, description="full-batch steps of a critic's head in an update")
    value_pretraining: int = Field(
        10, ge=0, description="most updates in which a critic that is pre-trained learns alone, the policy frozen"
    )
    temperature: float = Field(1.0, ge=0, description="sampling temperature")
    grad_clip: float = Field(1.0, gt=0, description="gradient norm limit")
    shaping: float = Field(0.3, ge=0, description="weight of the partial score in the shaped reward")
    families: tuple[str, ...] = Field((), description="families to practise; empty takes those of the environment")
    focus: float = Field(0.0, ge=0, le=1, description="0 draws tasks evenly; 1 as often as their family fails")
    select: Literal["all", "mixed"] = Field(
        "all", description="`mixed`: only tasks that rollouts up to this iteration both solved and failed"
    )
    open_levels: float = Field(
        0.0, ge=0, le=1, description="success from which a family's next level opens; 0 leaves all open"
    )
    grow: float = Field(
        0.0, ge=0, le=1, description="share of an update's tasks that is made anew, of families and levels that fail"
    )
    replay: Literal["none", "cookbook", "arpo"] = Field(
        "none", description="whether a buffered success joins a group that fails, and by which rule"
    )
    replay_size: int = Field(0, ge=0, description="successes kept a task; 0 takes the rule's own, 10 or 8")
    warm_start: bool = Field(False, description="begin with the demonstrations in the replay buffer")
    eval_every: int = Field(
        0, ge=0, description="updates between evaluations on training tasks that are set aside; 0 sets none aside"
    )
    eval_tasks: int = Field(100, ge=1, description="how many are set aside")
    keep: Literal["last", "best"] = Field(
        "last", description="which policy is published: the last, or the best of those evaluations"
    )
    save_every: int = Field(10, ge=0, description="updates between resumable saves")
    sdpo: SdpoConfig = SdpoConfig()
    guards: GuardsConfig = GuardsConfig()


class EvalConfig(Section):
    """Measuring a policy."""

    episodes: int = Field(500, ge=1, description="held-out episodes")
    temperature: float = Field(0.0, ge=0, description="sampling temperature; 0 is greedy")
    max_turns: int = Field(8, ge=1, description="turns before an episode is truncated")
    retries: int = Field(2, ge=0, description="how often an episode that the environment lost is run again")


class TrackingConfig(Section):
    """MLflow."""

    enabled: bool = Field(True, description="write MLflow runs")
    uri: str = Field("", description="tracking URI; empty takes a SQLite file under `home`")


class StoreConfig(Section):
    """The trajectory store."""

    codec: Literal["png", "webp"] = Field("png", description="lossless codec for raw screenshots")
    fsync: bool = Field(True, description="flush every episode to the disk before it is acknowledged")
    gc_grace_seconds: float = Field(3600.0, ge=0, description="age at which unreferenced files may be collected")
