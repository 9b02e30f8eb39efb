"""verl: advantages, policy losses and the small functions around them."""

import re

import torch
from torch import Tensor

from flywheel.trainers.advantages import (
    batch_whitened,
    discounted_returns,
    gae,
    group_ids,
    group_relative,
    length_adaptive_lambda,
)
from flywheel.trainers.aggregation import Denominators, aggregate, masked_mean, whiten
from flywheel.trainers.corrections import importance_weights
from flywheel.trainers.divergences import adapt_kl_coefficient, entropy, kl_estimate, reward_with_kl
from flywheel.trainers.losses import clip_loss, dppo_loss, gmpo_loss, sapo_loss, value_loss, weighted_logp_loss
from tests.trainers.golden.registry import Golden, check, close, gradient, number

EXACT = 1e-9
# The reference keeps the statistics of a group of one, and all of its vectorised form, in float32.
SINGLETON, VECTORISED = 2e-7, 1e-5
MODE = r"(?P<mode>token-mean|token-sum|seq-mean-token-mean|seq-mean-token-sum|seq-mean-token-sum-norm)"


def row_counts(mask: Tensor) -> Tensor:
    """The reference divides a row by its count + 1e-8."""
    return mask.sum(-1).double() + 1e-8


# --- advantages ----------------------------------------------------------------------------------------


def check_rows(g: Golden, advantage_B: Tensor, tolerance: float = EXACT) -> None:
    g.only("advantages", "returns")
    group_B = group_ids(g.inputs["index"])
    alone_B = (group_B[:, None] == group_B).sum(-1) == 1
    for field in ("advantages", "returns"):
        expected = torch.tensor(g.case[field], dtype=torch.float64)
        actual = advantage_B[:, None] * g.mask
        close(actual[~alone_B], expected[~alone_B], tolerance, g.mask[~alone_B])
        close(actual[alone_B], expected[alone_B], max(tolerance, SINGLETON), g.mask[alone_B])


GROUP_FORMS = {
    "grpo_std": {"scale": "std"},
    "grpo_nostd": {"scale": "none"},
    "grpo_vectorized_std": {"scale": "std"},
    "rloo": {"scale": "leave_one_out"},
    "rloo_vectorized": {"scale": "leave_one_out"},
    "opo": {"scale": "none", "baseline": "length"},
}


@check("verl_advantages", rf"(?P<form>{'|'.join(GROUP_FORMS)})(?:\(.*\))?")
def group_advantages(g: Golden) -> None:
    # The vectorised RLOO is the only one that, like ours, gives a lone row nothing.
    singleton = "zero" if g["form"] == "rloo_vectorized" else "raw"
    groups, tokens_B = group_ids(g.inputs["index"]), g.mask.sum(-1)
    advantage_B = group_relative(g.score_B, groups, tokens_B, singleton=singleton, **GROUP_FORMS[g["form"]])
    check_rows(g, advantage_B, VECTORISED if "vectorized" in g["form"] else EXACT)


@check("verl_advantages", "reinforce_pp_baseline")
def reinforce_pp_baseline(g: Golden) -> None:
    groups = group_ids(g.inputs["index"])
    check_rows(g, batch_whitened(g.score_B, groups, g.mask.sum(-1), baseline="group", singleton="raw"))


@check("verl_advantages", rf"reinforce_pp_gamma{number('gamma')}")
def reinforce_pp(g: Golden) -> None:
    g.only("advantages", "returns")
    returns = discounted_returns(g.tensor("token_level_rewards"), g.mask, float(g["gamma"]))
    close(returns, g.case["returns"], EXACT, g.mask)
    close(whiten(returns, g.mask), g.case["advantages"], EXACT, g.mask)
    if float(g["gamma"]) == 1:
        by_row_B = batch_whitened(g.score_B, group_ids(g.inputs["index"]), g.mask.sum(-1))
        close(by_row_B[:, None].expand_as(returns), g.case["advantages"], EXACT, g.mask)


@check("verl_advantages", rf"gae_gamma{number('gamma')}_lam{number('lam')}")
def generalised_advantages(g: Golden) -> None:
    g.only("advantages", "returns", "advantages_unwhitened")
    rewards, values = g.tensor("token_level_rewards"), g.tensor("values")
    advantage, returns = gae(rewards, values, g.mask, gamma=float(g["gamma"]), lam=float(g["lam"]))
    close(advantage, g.case["advantages_unwhitened"], EXACT, g.mask)
    close(returns, g.case["returns"], EXACT, g.mask)
    close(whiten(advantage, g.mask), g.case["advantages"], EXACT, g.mask)


@check("verl_advantages", rf"length_adaptive_gae_alpha{number('alpha')}")
def length_adaptive(g: Golden) -> None:
    g.only("lam", "advantages_unwhitened_masked", "advantages_whitened")
    lam_B = length_adaptive_lambda(g.mask.sum(-1).double(), float(g["alpha"]))
    close(lam_B, g.case["lam"], EXACT)
    advantage, _ = gae(g.tensor("token_level_rewards"), g.tensor("values"), g.mask, lam=lam_B)
    close(advantage, g.case["advantages_unwhitened_masked"], EXACT, g.mask)
    close(whiten(advantage, g.mask), g.case["advantages_whitened"], EXACT, g.mask)


# --- policy losses -------------------------------------------------------------------------------------


LOSS = r"(?P<loss>vanilla|gspo|cispo|geo_mean|sapo|dppo_tv|dppo_kl|gpg)(?P<variant>[^|]*)"


@check("verl_policy_losses", rf"{LOSS}\|{MODE}")
def policy_losses(g: Golden) -> None:
    fields = ("agg", "advantages", "clip_low", "clip_high", "clip_c", "uses_rollout_is_weights")
    g.only("loss", "grad_log_prob", "metrics", *fields)
    logp, old, advantage = g.tensor("log_prob", grad=True), g.tensor("old_log_prob"), g.tensor(g.case["advantages"])
    low, high, c = (g.case[field] for field in ("clip_low", "clip_high", "clip_c"))
    functions = {
        "vanilla": lambda *x: clip_loss(*x, low, high, dual=c),
        "gspo": lambda *x: clip_loss(*x, low, high, level="sequence"),
        "cispo": lambda *x: weighted_logp_loss(*x, low, high),
        "geo_mean": lambda *x: gmpo_loss(*x, low, high),
        "sapo": sapo_loss,
        "dppo_tv": lambda *x: dppo_loss(*x, low, high, measure="tv", cap=c),
        "dppo_kl": lambda *x: dppo_loss(*x, low, high, measure="kl", cap=c),
        "gpg": lambda *x: weighted_logp_loss(*x, None, None, ratio=False),
    }
    terms = functions[g["loss"]](logp, old, advantage, g.mask)
    loss_BT = terms.loss_BT
    truncated = re.search(r"_tis([\d.]+)", g["variant"])
    assert g.case["uses_rollout_is_weights"] == bool(truncated), "the truncation is told by the name alone"
    if truncated:
        rollout = g.tensor("rollout_log_prob")
        loss_BT = loss_BT * importance_weights(old, rollout, g.mask, high=float(truncated[1]))
    if g["loss"] == "geo_mean":
        # The reference takes the plain mean over rows, a row without tokens (loss 0) included.
        counts = Denominators(int(g.mask.sum()), len(g.mask), horizon=1)
        loss = aggregate(loss_BT, g.mask, "seq-mean-token-mean", counts)
    else:
        assert g.case["agg"] == g["mode"]
        # The reference aggregates SAPO by rows whatever it is asked.
        mode = "seq-mean-token-mean" if g["loss"] == "sapo" else g["mode"]
        loss = aggregate(loss_BT, g.mask, mode, row_tokens_B=row_counts(g.mask))
    close(loss, g.case["loss"], EXACT)
    close(gradient(loss, logp), g.case["grad_log_prob"], EXACT, g.mask)
    check_metrics(g, logp, old, terms.clipped_BT, terms.capped_BT)


def check_metrics(g: Golden, logp: Tensor, old: Tensor, clipped: Tensor, capped: Tensor) -> None:
    metrics = dict(g.case["metrics"])
    if not metrics:
        return
    kl = masked_mean(kl_estimate(old, logp, "k1").clamp(-20, 20), g.mask)
    close(kl, metrics.pop("actor/ppo_kl"), EXACT)
    upper, lower = metrics.pop("actor/pg_clipfrac"), metrics.pop("actor/pg_clipfrac_lower")
    if g["loss"] == "geo_mean":
        # Here the reference splits one figure by the sign of the advantage.
        close(masked_mean(clipped.double(), g.mask), upper + lower, EXACT)
    else:
        close(masked_mean(clipped.double(), g.mask), upper, EXACT)
        close(masked_mean(capped.double(), g.mask), lower, EXACT)
    assert not metrics, f"unknown metrics {sorted(metrics)}"


# --- the rest ------------------------------------------------------------------------------------------


@check(
    "verl_misc",
    rf"agg\|{MODE}(?:\|(?:scale{number('scale')}|dp{number('world')}_(?P<unit>tokens|gbs){number('count')}))?",
)
def aggregation(g: Golden) -> None:
    g.only("loss_mat", "value")
    counts = Denominators.of(g.mask, horizon=int(g["scale"]) if g["scale"] else None)
    if g["unit"]:
        tokens = int(g["count"]) if g["unit"] == "tokens" else counts.tokens
        rows = int(g["count"]) if g["unit"] == "gbs" else counts.rows
        counts = Denominators(tokens, rows, counts.horizon, int(g["world"]))
    values = g.tensor(g.case.get("loss_mat", "advantages"))
    loss = aggregate(values, g.mask, g["mode"], counts, row_tokens_B=row_counts(g.mask))
    close(loss, g.case["value"], EXACT)


@check("verl_misc", r"kl\|(?P<estimator>k1|abs|k2|k3|k1\+|k3\+)")
def kl(g: Golden) -> None:
    g.only("kl", "grad_log_prob")
    logp = g.tensor("log_prob", grad=True)
    value = kl_estimate(logp, g.tensor("ref_log_prob"), g["estimator"])
    close(value, g.case["kl"], EXACT, g.mask)
    close(gradient((value * g.mask).sum(), logp), g.case["grad_log_prob"], EXACT, g.mask)


@check("verl_misc", r"kl\|(?P<estimator>k3\+?)\|clamp")
def kl_clamped(g: Golden) -> None:
    g.only("logprob", "ref", "kl")
    logp, ref = (torch.tensor(g.case[field], dtype=torch.float64) for field in ("logprob", "ref"))
    close(kl_estimate(logp, ref, g["estimator"]), g.case["kl"], EXACT)


@check("verl_misc", rf"value_loss\|clip{number('clip')}\|{MODE}")
def values(g: Golden) -> None:
    g.only("loss", "clipfrac", "grad_vpreds", "returns")
    predicted = g.tensor("vpreds", grad=True)
    returns = sum(g.tensor(name) for name in g.case["returns"].split("+"))
    loss_BT, clipped = value_loss(predicted, returns, g.tensor("values"), float(g["clip"]))
    loss = aggregate(loss_BT, g.mask, g["mode"], row_tokens_B=row_counts(g.mask))
    close(loss, g.case["loss"], EXACT)
    close(gradient(loss, predicted), g.case["grad_vpreds"], EXACT, g.mask)
    close(masked_mean(clipped.double(), g.mask), g.case["clipfrac"], EXACT)


@check("verl_misc", "entropy_from_logits")
def entropies(g: Golden) -> None:
    g.only("logits", "entropy")
    close(entropy(torch.tensor(g.case["logits"], dtype=torch.float64)), g.case["entropy"], EXACT)


@check("verl_misc", rf"entropy_loss\|{MODE}")
def entropy_loss(g: Golden) -> None:
    g.only("mask", "value")
    logits = torch.tensor(g.cases["entropy_from_logits"]["logits"], dtype=torch.float64)
    mask = torch.tensor(g.case["mask"]).bool()
    close(aggregate(entropy(logits), mask, g["mode"], row_tokens_B=row_counts(mask)), g.case["value"], EXACT)


@check("verl_misc", "masked_whiten")
def whitening(g: Golden) -> None:
    g.only("values", "out")
    close(whiten(g.tensor(g.case["values"]), g.mask), g.case["out"], EXACT, g.mask)


@check("verl_misc", "adaptive_kl")
def adaptive_kl(g: Golden) -> None:
    g.only("init", "target", "horizon", "current", "n", "value")
    c = g.case
    adapted = adapt_kl_coefficient(c["init"], c["current"], target=c["target"], samples=c["n"], horizon=c["horizon"])
    close(adapted, c["value"], EXACT)


@check("verl_misc", "rewards_with_kl")
def rewards_with_kl(g: Golden) -> None:
    g.only("kl_ratio", "out")
    rewards, old, ref = (g.tensor(name) for name in ("token_level_rewards", "old_log_prob", "ref_log_prob"))
    close(reward_with_kl(rewards, old, ref, g.case["kl_ratio"]), g.case["out"], EXACT, g.mask)
