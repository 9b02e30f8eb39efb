"""Every policy-gradient algorithm, in one table: name -> advantage, loss, aggregation, clip bounds, needs.

An algorithm is a choice of parts; the mathematics is in `advantages.py`, `steps.py`, `losses.py`, `aggregation.py` and
`critic.py`. Each entry works from what one update holds: logprobs now and when sampled, a mask, rewards and groups.
`needs` names what the trainer has to do besides. Token-level clips are dual everywhere (3): one token of negative
advantage and huge ratio would own the gradient, and none of the papers' results rests on letting it.

Legend: B rows (trajectories, or steps where `rows` says so), S steps, T tokens. Masks are bool, True on trained tokens.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from flywheel.errors import ConfigError
from flywheel.sections import Aggregation, CorrectionName, RlConfig
from flywheel.trainers.advantages import actor_critic, batch_whitened, group_relative
from flywheel.trainers.losses import clip_loss, dppo_loss, gmpo_loss, sapo_loss, weighted_logp_loss
from flywheel.trainers.steps import dart, gigpo_by_screen, step_grpo, webrl
from flywheel.trainers.webrl import webrl_loss

Need = Literal["groups", "resampling", "overlong_penalty", "entropy_selection", "allotment"]
Unit = Literal["trajectory", "step", "token"]
CriticKind = Literal["value", "pretrained value", "verdict"]
DUAL_CLIP = 3.0


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One row of the table.

    `advantage` is called over the whole update. By `unit`: trajectory, (reward_B, group_B, tokens_B) -> advantage_B;
    step, (Steps) -> advantage_S; token, (reward_BT, value_BT, mask_BT) -> (advantage_BT, return_BT). `loss` is called
    on any micro-batch of whole rows. Bounds are None where the algorithm has none. `needs`: `groups`, several rollouts
    of each task; `resampling`, groups without spread are replaced by fresh ones; `overlong_penalty`, the reward
    includes `advantages.overlong_penalty`; `entropy_selection`, steps of low entropy are left out; `allotment`, fewer
    and shorter rollouts for tasks that are mastered. `rows` is what a loss and an aggregation see as one row, `critic`
    a kind in `critic.py`, `correction` the one that is part of the algorithm, `objective` a name in
    `objectives.OBJECTIVES`: what uses all of this.
    """

    name: str
    advantage: Callable[..., Any]
    loss: Callable[..., Any]
    aggregation: Aggregation
    clip_low: float | None
    clip_high: float | None
    needs: frozenset[Need]
    keeps: str
    drops: str
    source: str
    unit: Unit = "trajectory"
    rows: Literal["trajectory", "step"] = "trajectory"
    critic: CriticKind | None = None
    correction: CorrectionName = "none"
    correction_high: float | None = None
    objective: str = "policy"


_GROUPS: frozenset[Need] = frozenset({"groups"})
_PPO = partial(clip_loss, dual=DUAL_CLIP)
_SEQUENCE = partial(clip_loss, level="sequence")

TABLE = (
    Algorithm(
        "ppo", partial(actor_critic, lam=1.0), _PPO, "token-mean", 0.2, 0.2, frozenset(),
        unit="token", critic="value",
        keeps="clipped surrogate, GAE, whitened advantages, clipped value loss",
        drops="lambda .95 and a discount, which over tokens hide the outcome from all but the last turn: both are 1; "
        "a backbone of the critic's own: a linear head reads the policy's hidden states, without gradient, and what "
        "the task's other rollouts got, without which it knows too little of a new task",
        source="arXiv:1707.06347, arXiv:1506.02438",
    ),
    Algorithm(
        "vapo", partial(actor_critic, lam=None, critic_lam=1.0), _PPO, "token-mean", 0.2, 0.28, frozenset(),
        unit="token", critic="pretrained value",
        keeps="decoupled GAE (critic lambda 1), length-adaptive actor lambda clamped to [0, 1], value pre-training, "
        "the policy frozen, until explained variance is .3 and flat, clip-higher, token mean",
        drops="the added likelihood of right answers; as PPO, a backbone of the critic's own",
        source="arXiv:2504.05118, UI-TARS-2 arXiv:2509.02544",
    ),
    Algorithm(
        "critic_free_ppo", partial(batch_whitened, unit="row"), _PPO, "token-mean", 0.2, 0.2, frozenset(),
        keeps="clipped surrogate, dual clip, whitened advantages",
        drops="the critic: the baseline is the mean reward of the batch, each trajectory counted once",
        source="arXiv:1707.06347",
    ),
    Algorithm(
        "reinforce_pp", batch_whitened, _PPO, "token-mean", 0.2, 0.2, frozenset(),
        keeps="batch whitening with each token counted once, the clip",
        drops="discounting; the KL goes into the loss, not into the reward",
        source="arXiv:2501.03262",
    ),
    Algorithm(
        "reinforce_pp_baseline", partial(batch_whitened, baseline="group"), _PPO, "token-mean", 0.2, 0.2, _GROUPS,
        keeps="group mean taken off before the batch is whitened, the clip",
        drops="nothing but the k2 estimator as default (choose it by the KL setting)",
        source="arXiv:2501.03262, section 3.3",
    ),
    Algorithm(
        "grpo", group_relative, _PPO, "seq-mean-token-mean", 0.2, 0.2, _GROUPS,
        keeps="group mean and standard deviation, each row weighs the same whatever its length, k3 to the reference",
        drops="process rewards",
        source="arXiv:2402.03300",
    ),
    Algorithm(
        "dr_grpo", partial(group_relative, scale="none"), _PPO, "seq-mean-token-sum-norm", 0.2, 0.2, _GROUPS,
        keeps="no division by the deviation, none by a row's length: a sum over a constant horizon",
        drops="nothing",
        source="arXiv:2503.20783",
    ),
    Algorithm(
        "rloo", partial(group_relative, scale="leave_one_out"), _PPO, "seq-mean-token-sum", 0.2, 0.2, _GROUPS,
        keeps="leave-one-out baseline, the whole row as one action (its logprobs are summed)",
        drops="a single sequence ratio: off-policy minibatches are clipped token by token",
        source="arXiv:2402.14740",
    ),
    Algorithm(
        "opo", partial(group_relative, scale="none", baseline="length"), _PPO, "token-mean", 0.2, 0.2, _GROUPS,
        keeps="the length-weighted baseline of least variance",
        drops="exact on-policy training: the clip stays for minibatches",
        source="arXiv:2505.23585",
    ),
    Algorithm(
        "dapo", group_relative, _PPO, "token-mean", 0.2, 0.28, frozenset({"groups", "resampling", "overlong_penalty"}),
        keeps="clip-higher, token mean, dynamic sampling, overlong penalty, no KL",
        drops="nothing",
        source="arXiv:2503.14476",
    ),
    Algorithm(
        "gspo", group_relative, _SEQUENCE, "seq-mean-token-mean", 3e-4, 4e-4, _GROUPS,
        keeps="length-normalised sequence ratio, its clip in token form",
        drops="nothing",
        source="arXiv:2507.18071",
    ),
    Algorithm(
        "gspo_token", step_grpo, _SEQUENCE, "seq-mean-token-mean", 3e-4, 4e-4, _GROUPS,
        unit="step",
        keeps="the whole trajectory's ratio with advantages that differ within it, here by step",
        drops="nothing; the paper leaves open where finer advantages come from: Step-GRPO's are taken",
        source="arXiv:2507.18071, section 4.3",
    ),
    Algorithm(
        "step_grpo", step_grpo, _PPO, "token-mean", 0.2, 0.2, _GROUPS,
        unit="step", rows="step",
        keeps="1 for a well-formed step of a successful trajectory, normalised over all steps of a task's rollouts",
        drops="the training on API calls beside it",
        source="ComputerRL arXiv:2508.14040",
    ),
    Algorithm(
        "gigpo", gigpo_by_screen, _PPO, "token-mean", 0.2, 0.2, _GROUPS,
        unit="step", rows="step",
        keeps="episode part and step part (weight 1) among steps that saw the same screen, returns discounted by .95",
        drops="anchors by text: a screen's anchor is a hash of its quantised pixels without the text cursor",
        source="arXiv:2505.10978",
    ),
    Algorithm(
        "dart", dart, _PPO, "token-mean", 0.2, 0.28, frozenset({"groups", "entropy_selection", "allotment"}),
        unit="step", rows="step", correction="token_tis", correction_high=1.0,
        keeps="step-wise groups (population deviation), steps at or above the 20th percentile of entropy, fewer "
        "rollouts for tasks above .6 and a length cap by task, clip-higher, token weights truncated at 1",
        drops="asynchronous rollouts; the pool of collected successes is `rl.replay`'s",
        source="DART-GUI arXiv:2509.23866",
    ),
    Algorithm(
        "webrl", webrl, webrl_loss, "seq-mean-token-sum", None, None, frozenset(),
        unit="step", rows="step", critic="verdict", objective="webrl",
        keeps="two-headed binary critic, sign advantages, adaptive beta, smooth L1 on the log ratio of positive steps",
        drops="the critic's backbone and deep heads, the curriculum of written tasks, replay, the added SFT term",
        source="arXiv:2411.02337",
    ),
    Algorithm(
        "cispo", group_relative, weighted_logp_loss, "token-mean", 1.0, 4.0, _GROUPS,
        keeps="clipped importance weights without gradient; every token keeps its gradient; no lower bound (0)",
        drops="nothing; the upper bound, untold in the paper, is 5 as in trl",
        source="arXiv:2506.13585",
    ),
    Algorithm(
        "gmpo", group_relative, gmpo_loss, "seq-mean-token-mean", 0.4, 0.4, _GROUPS,
        keeps="geometric mean of ratios, bounds (e^-0.4, e^0.4) on each token's log ratio",
        drops="nothing",
        source="arXiv:2507.20673",
    ),
    Algorithm(
        "sapo", group_relative, sapo_loss, "seq-mean-token-mean", None, None, _GROUPS,
        keeps="sigmoid gate with temperatures 1.0 and 1.05 by the sign of the advantage",
        drops="nothing",
        source="arXiv:2511.20347",
    ),
    Algorithm(
        "dppo", group_relative, dppo_loss, "token-mean", 0.2, 0.2, _GROUPS,
        keeps="trust region on probabilities (binary total variation), weights truncated at 20",
        drops="the KL and top-K forms of the divergence",
        source="arXiv:2602.04879",
    ),
    Algorithm(
        "gpg", partial(group_relative, scale="none"), partial(weighted_logp_loss, ratio=False), "token-mean",
        None, None, _GROUPS,
        keeps="plain policy gradient against the group mean: no ratio, no clip",
        drops="the rescaling by the share of rows with reward, which Adam undoes",
        source="arXiv:2504.02546",
    ),
    Algorithm(
        "sdpo", group_relative, weighted_logp_loss, "token-mean", None, None, _GROUPS,
        keeps="divergence from the same policy with hindsight, on the student's top K; EMA or trust-region teacher",
        drops="advantages, which are only recorded; see `self_distillation.py` and `hindsight.py`",
        source="arXiv:2601.20802",
        objective="self_distillation",
    ),
)  # fmt: skip
ALGORITHMS = {entry.name: entry for entry in TABLE}


def configured(config: RlConfig) -> Algorithm:
    """The row that `rl.algorithm` names, with what the configuration says in the place of its own.

    Raises: ConfigError for an unknown name.
    """
    chosen = algorithm(config.algorithm)
    if config.aggregation is not None:
        chosen = replace(chosen, aggregation=config.aggregation)
    if chosen.loss is not _SEQUENCE:
        return chosen
    low, high = config.sequence_clip_low, config.sequence_clip_high
    return replace(
        chosen,
        clip_low=chosen.clip_low if low is None else low,
        clip_high=chosen.clip_high if high is None else high,
    )


def algorithm(name: str) -> Algorithm:
    """Look a name up in the table. Raises `ConfigError` that names the nearest."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    near = difflib.get_close_matches(name.lower().replace("-", "_"), ALGORITHMS, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(ALGORITHMS)}."
    raise ConfigError(f"Unknown algorithm {name!r} in rl.algorithm; {hint}")
