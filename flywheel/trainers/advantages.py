"""How much better than expected: advantages from rewards, and returns and GAE from values.

Ours, against the references: a group of one teaches nothing, so its advantage is 0 (the references hand out the raw
reward; `singleton="raw"` does as they do), and a group whose rewards differ by less than 1e-8 gets exactly 0.
`count_groups` says how many groups were of either kind.

Legend: B rows (trajectories; single steps for step-GRPO and GiGPO), T tokens. `group_B` holds int64 ids of tasks; rows
of one group need not be adjacent. Rewards and advantages are unitless and carry no gradient.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flywheel.trainers.aggregation import whiten

FLAT = 1e-8
Scale = Literal["std", "none", "leave_one_out"]
Singleton = Literal["zero", "raw"]


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Of the groups of one batch: how many, how many of one row, how many (of two rows or more) without spread."""

    groups: int
    singletons: int
    flat: int

    @property
    def informative(self) -> float:
        """Share of groups that carry any signal."""
        return (self.groups - self.singletons - self.flat) / max(self.groups, 1)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Statistics of each row's group, spread back over the rows."""

    size_B: Tensor
    mean_B: Tensor
    deviation_B: Tensor
    spread_B: Tensor

    @property
    def flat_B(self) -> Tensor:
        return (self.spread_B < FLAT) & (self.size_B > 1)


def group_ids(names: Sequence[Hashable]) -> Tensor:
    """int64 ids (B,), equal where names are equal, numbered by first appearance."""
    seen: dict[Hashable, int] = {}
    return torch.tensor([seen.setdefault(name, len(seen)) for name in names])


def _groups(reward_B: Tensor, group_B: Tensor, weight_B: Tensor, counted_B: Tensor, *, bessel: bool) -> _Groups:
    """Statistics over the rows marked in `counted_B`; `weight_B` weighs the mean only."""
    if not reward_B.shape == group_B.shape == weight_B.shape == counted_B.shape:
        raise ValueError(f"Rewards {tuple(reward_B.shape)} and groups {tuple(group_B.shape)} need one entry a row.")
    index_B = torch.unique(group_B, return_inverse=True)[1]
    kept_B, reward_K, weight_K = index_B[counted_B], reward_B[counted_B], weight_B[counted_B].to(reward_B.dtype)
    zeros_G = reward_B.new_zeros(int(index_B.max()) + 1)
    size_G = zeros_G.index_add(0, kept_B, torch.ones_like(reward_K))
    plain_G = zeros_G.index_add(0, kept_B, reward_K) / size_G
    mean_G = zeros_G.index_add(0, kept_B, reward_K * weight_K) / zeros_G.index_add(0, kept_B, weight_K).clamp(min=FLAT)
    square_G = zeros_G.index_add(0, kept_B, (reward_K - plain_G[kept_B]).square())
    spread_G = zeros_G.scatter_reduce(0, kept_B, reward_K, "amax", include_self=False) - zeros_G.scatter_reduce(
        0, kept_B, reward_K, "amin", include_self=False
    )
    deviation_G = (square_G / (size_G - int(bessel)).clamp(min=1)).sqrt()
    return _Groups(size_G[index_B], mean_G[index_B], deviation_G[index_B], spread_G[index_B])


def count_groups(reward_B: Tensor, group_B: Tensor) -> GroupCounts:
    """Groups, singletons and groups without spread; what is logged beside every policy-gradient step."""
    ones_B = torch.ones_like(reward_B)
    rows = _groups(reward_B, group_B, ones_B, ones_B.bool(), bessel=True)
    share_B = 1 / rows.size_B
    singletons, flat = (round(float(share_B[kind_B].sum())) for kind_B in (rows.size_B == 1, rows.flat_B))
    return GroupCounts(round(float(share_B.sum())), singletons, flat)


def informative_rows(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """bool (B,): True in groups of two or more that differ in reward; DAPO's dynamic sampling keeps these only."""
    ones_B = torch.ones_like(reward_B)
    return _groups(reward_B, group_B, ones_B, ones_B.bool(), bessel=True).spread_B >= FLAT


def group_relative(
    reward_B: Tensor,
    group_B: Tensor,
    tokens_B: Tensor | None = None,
    *,
    scale: Scale = "std",
    baseline: Literal["mean", "length"] = "mean",
    singleton: Singleton = "zero",
    counted_B: Tensor | None = None,
    bessel: bool = True,
    eps: float = 1e-6,
) -> Tensor:
    """Reward against the group's baseline; one function for GRPO, Dr.GRPO, RLOO, OPO and step-GRPO.

        A_b = (R_b - baseline_g) * factor_g
        baseline: mean of R, or sum(length * R) / sum(length)
        factor:   std 1 / (std + eps);  none 1;  leave_one_out n / (n - 1)

    Step-GRPO (ComputerRL, arXiv:2508.14040) is the std form with one row a step over all steps of all rollouts, and
    R = 1 where the trajectory succeeded and the action is well formed. Sources: GRPO arXiv:2402.03300, Dr.GRPO
    arXiv:2503.20783, RLOO arXiv:2402.14740, OPO arXiv:2505.23585.

    Args:
        reward_B: one reward a row.
        group_B: int64 group of each row.
        tokens_B: trained tokens of each row; read by the length baseline only.
        singleton: what a group of one gets, 0 or its raw reward.
        counted_B: bool, rows that enter the statistics (all by default); the others are only measured against them.
        bessel: divide the variance by n - 1, not n.
        eps: added to the standard deviation.
    Returns: advantage_B.
    Raises: ValueError if shapes disagree or the length baseline lacks its lengths.
    """
    if baseline == "length" and tokens_B is None:
        raise ValueError("The length baseline needs the token count of each row.")
    weight_B = tokens_B if baseline == "length" and tokens_B is not None else torch.ones_like(reward_B)
    counted_B = torch.ones_like(reward_B, dtype=torch.bool) if counted_B is None else counted_B
    rows = _groups(reward_B, group_B, weight_B, counted_B, bessel=bessel)
    advantage_B = reward_B - rows.mean_B
    if scale == "std":
        advantage_B = advantage_B / (rows.deviation_B + eps)
    elif scale == "leave_one_out":
        advantage_B = advantage_B * rows.size_B / (rows.size_B - 1).clamp(min=1)
    raw_B = reward_B / (1 + eps) if scale == "std" else reward_B
    alone_B = raw_B if singleton == "raw" else torch.zeros_like(reward_B)
    return torch.where(rows.size_B == 1, alone_B, torch.where(rows.flat_B, 0.0, advantage_B))


def others_mean(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """mean_B of the other rows of each row's group and, as one row more, the mean of all other rows: a group of one has
    nothing else, and a small group is not believed alone."""
    size_B = torch.bincount(group_B)[group_B]
    sum_B = torch.zeros_like(reward_B).index_add(0, group_B, reward_B)[group_B]
    all_B = (reward_B.sum() - reward_B) / max(len(reward_B) - 1, 1)
    return (sum_B - reward_B + all_B) / size_B


def batch_whitened(
    reward_B: Tensor,
    group_B: Tensor,
    tokens_B: Tensor,
    *,
    unit: Literal["row", "token"] = "token",
    baseline: Literal["batch", "group"] = "batch",
    singleton: Singleton = "zero",
) -> Tensor:
    """Reward whitened over the batch; with `baseline="group"` the group's mean is taken off first.

    `unit="token"` counts a row once for each of its tokens: REINFORCE++ at discount 1, and its baseline form.
    `unit="row"` counts every trajectory once. With the group baseline a group without spread keeps the small offset
    of the whitening, as in the reference. Source: REINFORCE++ arXiv:2501.03262.

    Returns: advantage_B. Raises: TrainingError if fewer than two units are counted.
    """
    if baseline == "group":
        reward_B = group_relative(reward_B, group_B, scale="none", singleton=singleton)
    return whiten(reward_B, tokens_B if unit == "token" else tokens_B > 0)


def discounted_returns(reward_BT: Tensor, mask_BT: Tensor, gamma: float = 1.0) -> Tensor:
    """return_BT, G_t = r_t + gamma G_{t'} with t' the next trained token: observations in between cost no discount."""
    returns_BT = torch.zeros_like(reward_BT)
    running_B = torch.zeros_like(reward_BT[:, 0])
    for t in reversed(range(reward_BT.shape[1])):
        running_B = torch.where(mask_BT[:, t], reward_BT[:, t] + gamma * running_B, running_B)
        returns_BT[:, t] = torch.where(mask_BT[:, t], running_B, 0.0)
    return returns_BT


def gae(
    reward_BT: Tensor, value_BT: Tensor, mask_BT: Tensor, *, gamma: float = 1.0, lam: float | Tensor = 0.95
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation; value and accumulator are carried across masked tokens.

        delta_t = r_t + gamma V_{t'} - V_t,   A_t = delta_t + gamma lam A_{t'},   t' the next trained token

    Whiten the result with `aggregation.whiten` if wanted. Decoupled GAE (VAPO, UI-TARS-2) calls this twice: lam 1 for
    the critic's returns, `length_adaptive_lambda` for the actor. Source: arXiv:1506.02438.

    Args:
        lam: one number, or one a row (B,).
    Returns: (advantage_BT, return_BT); meaningless outside the mask.
    """
    mask = mask_BT.to(value_BT.dtype)
    next_value_B = running_B = torch.zeros_like(value_BT[:, 0])
    advantage_BT = torch.zeros_like(value_BT)
    for t in reversed(range(value_BT.shape[1])):
        delta_B = reward_BT[:, t] + gamma * next_value_B - value_BT[:, t]
        advantage_BT[:, t] = delta_B + gamma * lam * running_B
        next_value_B = torch.where(mask_BT[:, t], value_BT[:, t], next_value_B)
        running_B = advantage_BT[:, t] * mask[:, t] + running_B * (1 - mask[:, t])
    return advantage_BT, advantage_BT + value_BT


def length_adaptive_lambda(tokens_B: Tensor, alpha: float = 0.05) -> Tensor:
    """lam_b = 1 - 1 / (alpha tokens_b), clamped to [0, 1]: unclamped it is negative below 1 / alpha tokens.

    Source: VAPO arXiv:2504.05118, UI-TARS-2 arXiv:2509.02544.
    """
    return (1 - 1 / (alpha * tokens_B)).clamp(0.0, 1.0)


def actor_critic(
    reward_BT: Tensor, value_BT: Tensor, mask_BT: Tensor, *, lam: float | None = 0.95, critic_lam: float | None = None
) -> tuple[Tensor, Tensor]:
    """GAE whitened over the batch for the actor, returns for the critic.

    Args:
        lam: the actor's; None adapts it to each row's length.
        critic_lam: the critic's (decoupled GAE); None takes the actor's.
    Returns: (advantage_BT, return_BT); meaningless outside the mask.
    """
    own = length_adaptive_lambda(mask_BT.sum(-1)).to(value_BT) if lam is None else lam
    advantage_BT, return_BT = gae(reward_BT, value_BT, mask_BT, lam=own)
    if critic_lam is not None:
        return_BT = gae(reward_BT, value_BT, mask_BT, lam=critic_lam)[1]
    return whiten(advantage_BT, mask_BT), return_BT


def step_returns(reward_B: Tensor, trajectory_B: Tensor, gamma: float) -> Tensor:
    """return_B, one row a step in order of time: G = r + gamma G of the trajectory's next step."""
    running: dict[int, Tensor] = {}
    returns_B = torch.zeros_like(reward_B)
    for row, trajectory in reversed(list(enumerate(trajectory_B.tolist()))):
        later = running.get(trajectory)
        returns_B[row] = reward_B[row] if later is None else reward_B[row] + gamma * later
        running[trajectory] = returns_B[row]
    return returns_B


def first_rows(group_B: Tensor, trajectory_B: Tensor) -> Tensor:
    """bool (B,), True on the first row of each trajectory of each group; `counted_B` for one vote a trajectory."""
    pair_B = torch.unique(torch.stack([group_B, trajectory_B]), dim=1, return_inverse=True)[1]
    row_B = torch.arange(len(pair_B), device=pair_B.device)
    first_G = torch.full_like(row_B, len(pair_B)).scatter_reduce(0, pair_B, row_B, "amin")
    return row_B == first_G[pair_B]


def gigpo(
    score_B: Tensor,
    return_B: Tensor,
    group_B: Tensor,
    anchor_B: Tensor,
    *,
    omega: float = 1.0,
    scale: Literal["std", "none"] = "none",
    singleton: Singleton = "zero",
    counted_B: Tensor | None = None,
) -> Tensor:
    """Group-in-group advantage, one row a step: A = A_episode + omega A_step.

    The episode part compares trajectories of a task by their score; the step part compares the discounted returns of
    steps of that task that saw the same anchor observation. Keeps both parts and the shared-anchor grouping; drops
    grouping by text similarity. Source: arXiv:2505.10978.

    Args:
        score_B: score of the step's whole trajectory (equal on all of its rows).
        return_B: discounted return from this step on, see `step_returns`.
        anchor_B: int64 id of the observation the step saw.
        omega: weight of the step part; a step whose anchor nobody shares gets 0 from it.
        counted_B: rows that enter the episode statistics; see `first_rows`. Default: every step votes.
    Returns: advantage_B.
    """
    episode_B = group_relative(score_B, group_B, scale=scale, singleton=singleton, counted_B=counted_B)
    shared_B = torch.unique(torch.stack([group_B, anchor_B]), dim=1, return_inverse=True)[1]
    return episode_B + omega * group_relative(return_B, shared_B, scale=scale)


def overlong_penalty(length_B: Tensor, limit: int, buffer: int, factor: float = 1.0) -> Tensor:
    """DAPO's soft penalty (B,): 0 up to `limit - buffer` tokens, then linear down to -factor at `limit`.

    Source: arXiv:2503.14476, section 3.4.
    """
    return (-(length_B - (limit - buffer)) / buffer * factor).clamp(max=0.0)
