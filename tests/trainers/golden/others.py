"""slime, prime-rl, DART, WebRL, ARPO, step-GRPO and GiGPO."""

import math

import torch
from torch import Tensor

from flywheel.trainers.advantages import (
    count_groups,
    first_rows,
    gae,
    gigpo,
    group_ids,
    group_relative,
    step_returns,
)
from flywheel.trainers.aggregation import aggregate, masked_mean
from flywheel.trainers.corrections import importance_weights, off_policy_mask
from flywheel.trainers.divergences import kl_estimate
from flywheel.trainers.losses import clip_loss, dppo_loss, sequence_ratio
from flywheel.trainers.webrl import critic_value, webrl_advantage, webrl_loss
from tests.trainers.golden.registry import INPUTS, Golden, check, close, gradient, inputs_of, number

EXACT, WEBRL, GIGPO = 1e-6, 1e-5, 2e-6
inputs_of("slime", "rows")
inputs_of("gigpo", "inputs")
# One case, "loss"; the other entries are its inputs, its gradient and its log.
inputs_of("webrl", "v1", "v2", "nv1", "nv2", "mask", "log_prob", "ref_log_prob", "mc_return", "reward")
INPUTS["webrl"] |= {"grad_log_prob", "info"}


# --- slime: some rows of the common inputs, flattened -----------------------------------------------------


def rows_of(g: Golden, *names: str, rows: list[int]) -> list[Tensor]:
    return [g.tensor(name)[rows] for name in names]


@check("slime", r"kl\|(?P<estimator>k1|k2|k3|low_var_kl)")
def slime_kl(g: Golden) -> None:
    limited = g["estimator"] == "low_var_kl"
    estimator = "k3" if limited else g["estimator"]
    value = kl_estimate(g.tensor("log_prob"), g.tensor("ref_log_prob"), estimator, limit=10.0 if limited else None)
    close(value, g.case, EXACT, g.mask)


@check("slime", "gspo_kl")
def slime_gspo_kl(g: Golden) -> None:
    logp, old, mask = rows_of(g, "log_prob", "old_log_prob", "response_mask", rows=g.cases["rows"])
    close(-sequence_ratio(logp, old, mask.bool()).log().flatten(), g.case, EXACT, mask.flatten().bool())


@check("slime", rf"(?P<kind>gspo|ppo)_loss_{number('low')}_{number('high')}(?:_c{number('dual')})?")
def slime_losses(g: Golden) -> None:
    g.only("pg_losses", "clipfrac")
    names = ("log_prob", "old_log_prob", "advantages_seq" if g["kind"] == "gspo" else "advantages", "response_mask")
    logp, old, advantage, mask = rows_of(g, *names, rows=g.cases["rows"])
    level, dual = "sequence" if g["kind"] == "gspo" else "token", float(g["dual"]) if g["dual"] else None
    low, high = float(g["low"]), float(g["high"])
    terms = clip_loss(logp, old, advantage, mask.bool(), low, high, level=level, dual=dual)
    close(terms.loss_BT.flatten(), g.case["pg_losses"], EXACT, mask.flatten().bool())
    close(terms.clipped_BT.double().flatten(), g.case["clipfrac"], EXACT, mask.flatten().bool())


@check("slime", rf"opsm_{number('threshold')}")
def slime_off_policy(g: Golden) -> None:
    g.only("mask", "clipfrac")
    names = ("log_prob", "old_log_prob", "advantages_seq", "response_mask")
    logp, old, advantage, mask = rows_of(g, *names, rows=g.cases["rows"])
    kept = off_policy_mask(logp, old, advantage, mask.bool(), float(g["threshold"]))
    close(kept.double().flatten(), g.case["mask"], EXACT, mask.flatten().bool())
    # The reference counts all positions of a dropped row over its trained tokens.
    dropped_B = (mask.bool() & ~kept).any(-1)
    close((mask.shape[1] / mask.sum(-1))[dropped_B].sum(), g.case["clipfrac"], EXACT)


@check("slime", rf"(?P<kind>tis|icepop)\|{number('low')}\|{number('high')}")
def slime_weights(g: Golden) -> None:
    old, rollout, mask = rows_of(g, "old_log_prob", "rollout_log_prob", "response_mask", rows=g.cases["rows"])
    outside = "clamp" if g["kind"] == "tis" else "zero"
    low, high = float(g["low"]), float(g["high"])
    weight = importance_weights(old, rollout, mask.bool(), low=low, high=high, outside=outside)
    close(weight.flatten(), g.case, EXACT, mask.flatten().bool())


@check("slime", rf"vanilla_gae_{number('gamma')}_{number('lam')}_nomask")
def slime_gae(g: Golden) -> None:
    g.only("advantages", "returns")
    rewards, values = g.tensor("token_level_rewards"), g.tensor("values")
    everything = torch.ones_like(g.mask)
    advantage, returns = gae(rewards, values, everything, gamma=float(g["gamma"]), lam=float(g["lam"]))
    close(advantage, g.case["advantages"], EXACT)
    close(returns, g.case["returns"], EXACT)


# --- prime-rl: flattened, summed --------------------------------------------------------------------------


# Its settings are constants of the reference: it drops tokens that have become less likely, whatever the advantage.
REF_KL = {"dppo_mask_low": 0.2, "dppo_mask_high": math.inf, "adv_tau": 1.0, "kl_tau": 1e-3}


@check("prime_rl", r".+")
def prime_rl(g: Golden) -> None:
    g.only("config", "loss_sum", "grad", "metrics")
    reference = g.match.string == "ref_kl"
    config = dict(g.case.get("config", REF_KL))
    logp, sampled, mask = g.tensor("log_prob", grad=True), g.tensor("rollout_log_prob"), g.mask
    towards_reference = (g.tensor("ref_log_prob") - logp).detach()
    advantage = towards_reference if reference else g.tensor("advantages_seq")
    two_sided = reference or "ipo_threshold" in config
    symmetric = config.pop("ipo_threshold", None)
    low, high = (config.pop(f"dppo_mask_{side}", symmetric) for side in ("low", "high"))
    tau, kl_tau = config.pop("adv_tau"), config.pop("kl_tau")
    assert not config, f"unknown settings {sorted(config)}"
    terms = dppo_loss(logp, sampled, tau * advantage, mask, low, high, two_sided=two_sided, surrogate="ratio")
    loss = aggregate(terms.loss_BT + 2 * kl_tau * kl_estimate(logp, sampled, "k2"), mask, "token-sum")
    close(loss, g.case["loss_sum"], EXACT)
    close(gradient(loss, logp).flatten(), g.case["grad"], EXACT, mask.flatten())
    k3, dropped = kl_estimate(sampled, logp, "k3", limit=None), terms.clipped_BT & mask
    signs = {"positive": advantage > 0, "negative": advantage < 0}
    expected = {
        "masked_mismatch_kl": masked_mean(k3, dropped),
        "unmasked_mismatch_kl": masked_mean(k3, mask & ~dropped),
        "is_masked": masked_mean(dropped.double(), mask),
        "is_masked_low": masked_mean((dropped & signs["negative"]).double(), mask),
        "is_masked_high": masked_mean((dropped & signs["positive"]).double(), mask),
        **{f"masked_advantage_{sign}": masked_mean(where.double(), dropped) for sign, where in signs.items()},
        "ref_kl": masked_mean(towards_reference, mask),
    }
    for name, figure in g.case["metrics"].items():
        key = name.removeprefix("ref_kl/")
        assert key in expected, f"unknown metric {name}"
        close(expected[key], figure, EXACT)


# --- DART, ARPO, step-GRPO --------------------------------------------------------------------------------


@check("dart_gui", rf"(?P<kind>gspo|vanilla)_{number('low')}_{number('high')}")
def dart(g: Golden) -> None:
    g.only("rows", "loss", "grad")
    names = ("old_log_prob", "rollout_log_prob", "advantages_seq", "response_mask")
    old, rollout, advantage, mask = rows_of(g, *names, rows=g.case["rows"])
    logp = g.tensor("log_prob")[g.case["rows"]].requires_grad_()
    low, high, whole = float(g["low"]), float(g["high"]), g["kind"] == "gspo"
    weight = importance_weights(old, rollout, mask.bool(), high=1.0)
    level, dual = ("sequence", None) if whole else ("token", 3.0)
    terms = clip_loss(logp, old, advantage, mask.bool(), low, high, level=level, dual=dual)
    mode = "seq-mean-token-mean" if whole else "token-mean"
    loss = aggregate(terms.loss_BT * weight, mask.bool(), mode)
    close(loss, g.case["loss"], EXACT)
    close(gradient(loss, logp), g.case["grad"], EXACT, mask.bool())


@check("arpo", r"grpo_rows(?P<first>\d+)_(?P<last>\d+)_fp32")
def arpo(g: Golden) -> None:
    rows = slice(int(g["first"]), int(g["last"]) + 1)
    advantage_B = group_relative(g.score_B[rows], group_ids(g.inputs["index"][rows]))
    close(advantage_B[:, None] * g.mask[rows], g.case, EXACT, g.mask[rows])


@check("arpo", "singleton")
def arpo_singleton(g: Golden) -> None:
    """The reference refuses a group of one; ours gives it nothing and counts it."""
    assert "rollout.n > 1" in g.case
    reward_B, group_B = torch.tensor([1.0]), torch.tensor([0])
    assert group_relative(reward_B, group_B).tolist() == [0.0]
    assert count_groups(reward_B, group_B).singletons == 1


@check("step_grpo", rf"computerrl_step_grpo\(sample std, eps{number('eps')}\)")
def step_grpo(g: Golden) -> None:
    g.only("step_rewards", "index", "advantages")
    reward_B = torch.tensor(g.case["step_rewards"], dtype=torch.float64)
    advantage_B = group_relative(reward_B, group_ids(g.case["index"]), eps=float(g["eps"]))
    close(advantage_B, g.case["advantages"], EXACT)


@check("step_grpo", r"population_std_variant_(?P<group>\w+)\(DART paper\)")
def population_std(g: Golden) -> None:
    steps = next(case for case in g.cases.values() if isinstance(case, dict))
    pairs = zip(steps["step_rewards"], steps["index"], strict=True)
    reward_B = torch.tensor([reward for reward, group in pairs if group == g["group"]], dtype=torch.float64)
    close(group_relative(reward_B, torch.zeros(len(reward_B)).long(), bessel=False, eps=0.0), g.case, EXACT)


# --- GiGPO ------------------------------------------------------------------------------------------------


def gigpo_inputs(g: Golden) -> tuple[Tensor, Tensor, Tensor]:
    group_B, trajectory_B, anchor_B = (group_ids(g.inputs[name]) for name in ("index", "traj_index", "anchor_obs"))
    return group_B, trajectory_B, anchor_B


@check("gigpo", rf"returns_gamma{number('gamma')}")
def gigpo_returns(g: Golden) -> None:
    _, trajectory_B, _ = gigpo_inputs(g)
    close(step_returns(g.tensor("step_rewards_env"), trajectory_B, float(g["gamma"])), g.case, GIGPO)


@check(
    "gigpo",
    rf"gigpo\|gamma{number('gamma')}\|(?P<norm>mean_norm|mean_std_norm)\|w{number('omega')}\|cross_steps=(?P<cross>True|False)",
)
def gigpo_advantages(g: Golden) -> None:
    group_B, trajectory_B, anchor_B = gigpo_inputs(g)
    return_B = step_returns(g.tensor("step_rewards_env"), trajectory_B, float(g["gamma"]))
    counted_B = None if g["cross"] == "True" else first_rows(group_B, trajectory_B)
    scale = "none" if g["norm"] == "mean_norm" else "std"
    advantage_B = gigpo(
        g.score_B, return_B, group_B, anchor_B,
        omega=float(g["omega"]), scale=scale, singleton="raw", counted_B=counted_B,
    )  # fmt: skip
    close(advantage_B[:, None] * g.mask, g.case, GIGPO, g.mask)


@check("gigpo", r"episode_norm\|remove_std=(?P<plain>True|False)\|cross_steps=(?P<cross>True|False)")
def gigpo_episode(g: Golden) -> None:
    group_B, trajectory_B, _ = gigpo_inputs(g)
    counted_B = None if g["cross"] == "True" else first_rows(group_B, trajectory_B)
    scale = "none" if g["plain"] == "True" else "std"
    advantage_B = group_relative(g.score_B, group_B, scale=scale, singleton="raw", counted_B=counted_B)
    close(advantage_B[:, None] * g.mask, g.case, GIGPO, g.mask)


# --- WebRL ------------------------------------------------------------------------------------------------


@check("webrl", "loss")
def webrl(g: Golden) -> None:
    def entry(name: str) -> Tensor:
        return torch.tensor(g.cases[name], dtype=torch.float64)

    logp, ref, mask = entry("log_prob").requires_grad_(), entry("ref_log_prob"), entry("mask").bool()
    value_B, next_B = critic_value(entry("v1"), entry("v2")), critic_value(entry("nv1"), entry("nv2"))
    terms = webrl_loss(logp, ref, mask, webrl_advantage(value_B, next_B, entry("reward"), entry("mc_return")))
    close(terms.loss, g.case, WEBRL)
    close(gradient(terms.loss, logp), g.cases["grad_log_prob"], WEBRL, mask)
    sums_B, ref_B = (torch.where(mask, x, 0).sum(-1).detach() for x in (logp, ref))
    positive_tokens = mask.sum(-1)[terms.sign_B > 0].sum().clamp(min=1)
    expected = {
        "pg.loss": terms.loss,
        "advantages.mean": terms.sign_B.mean(),
        "log_prob": (sums_B / positive_tokens).mean(),
        "ref_prob": (ref_B / mask.sum(-1)).exp().mean(),
        "ref_log_prob": (ref_B / positive_tokens).mean(),
        "log_prob_ratio": terms.log_ratio_B.mean(),
        "mask": (terms.sign_B > 0).sum(),
        "beta": terms.beta_B.mean(),
        "sft_loss": 0.0,
        "non_zero_counts": mask.sum(),
        "beta_log_prob_ratio": (terms.beta_B * terms.log_ratio_B).mean(),
    }
    for name, figure in g.cases["info"].items():
        assert name in expected, f"unknown figure {name}"
        close(expected[name], figure, WEBRL)
    assert math.isfinite(float(terms.loss))
