"""verl: importance weights, rejection and the figures of the mismatch between engine and trainer."""

import math

import torch
from torch import Tensor

from flywheel.trainers.aggregation import masked_mean
from flywheel.trainers.corrections import (
    importance_weights,
    mean_weight,
    mismatch_metrics,
    rejection_mask,
    weight_metrics,
)
from tests.trainers.golden.registry import Golden, check, close, number

# The reference averages booleans in float32, and divides by a mean + 1e-8 for the effective sample size.
EXACT, FLOAT32 = 1e-9, 1e-7
TOLERANCES = {"eff_sample_size": 3e-8}


@check(
    "verl_rollout_corr",
    rf"is\|(?P<level>token|sequence)\|(?:{number('low')}_)?{number('high')}\|bn=(?P<normalise>True|False)",
)
def weights(g: Golden) -> None:
    g.only("weights", "metrics")
    old, rollout, normalise = g.tensor("old_log_prob"), g.tensor("rollout_log_prob"), g["normalise"] == "True"
    bounds = {"high": float(g["high"])}
    if g["low"]:
        bounds |= {"low": float(g["low"]), "outside": "zero"}
    plain = importance_weights(old, rollout, g.mask, level=g["level"], **bounds)
    raw = importance_weights(old, rollout, g.mask, level=g["level"], high=math.inf)
    final = importance_weights(old, rollout, g.mask, level=g["level"], normalise=normalise, **bounds)
    close(final, g.case["weights"], EXACT, g.mask)
    check_weight_metrics(g, plain, raw)


def check_weight_metrics(g: Golden, plain: Tensor, raw: Tensor) -> None:
    """The reference measures before it normalises, and counts a row without tokens as a row of weight 0."""
    ours = weight_metrics(plain, g.mask)
    high, low = float(g["high"]), float(g["low"] or 1 / float(g["high"]))
    row_B, raw_row_B = masked_mean(plain, g.mask, -1), masked_mean(raw, g.mask, -1)
    by_token = g["level"] == "token"
    over, under = (raw > high).double(), (raw < low).double()
    # A sequence's own product: for a row without tokens the empty one, 1.
    product_B = torch.where(g.mask.any(-1), raw.amax(-1), 1.0)
    expected = {
        "mean": ours["mean"],
        "std": ours["std"],
        "eff_sample_size": ours["effective_sample_size"],
        "max": ours["max"] if by_token else product_B.max(),
        "min": ours["min"] if by_token else product_B.min(),
        "ratio_fraction_high": masked_mean(over, g.mask) if by_token else (product_B > high).double().mean(),
        "ratio_fraction_low": masked_mean(under, g.mask) if by_token else (product_B < low).double().mean(),
        "oob_ratio": masked_mean(over + under, g.mask),
        "batch_norm_factor": mean_weight(plain, g.mask, level=g["level"]),
        "seq_mean": row_B.mean(),
        "seq_std": row_B.std(),
        "seq_max": row_B.max(),
        "seq_min": row_B.min(),
        "seq_max_deviation": (row_B - 1).abs().max(),
        "seq_fraction_high": (raw_row_B > high).double().mean(),
        "seq_fraction_low": (raw_row_B < low).double().mean(),
    }
    for name, figure in g.case["metrics"].items():
        key = name.removeprefix("rollout_is_")
        assert key in expected, f"unknown metric {name}"
        close(expected[key], figure, TOLERANCES.get(key, FLOAT32 if "fraction" in key else EXACT))


@check(
    "verl_rollout_corr",
    r"rs\|(?P<rules>(?:token|seq_sum|seq_mean|seq_max)_k[123](?:,(?:token|seq_sum|seq_mean|seq_max)_k[123])*)"
    r"\|(?P<bounds>[\d.,_]+)",
)
def rejection(g: Golden) -> None:
    g.only("mask", "metrics")
    old, rollout, mask = g.tensor("old_log_prob"), g.tensor("rollout_log_prob"), g.mask
    rules, bounds = g["rules"].split(","), g["bounds"].split(",")
    bounds = bounds * len(rules) if len(bounds) == 1 else bounds
    keep, kept_by = mask, {}
    for rule, bound in zip(rules, bounds, strict=True):
        level, estimator = rule.rsplit("_", 1)
        low, high = (float(x) for x in bound.split("_")) if "_" in bound else (None, float(bound))
        kept_by[rule] = rejection_mask(old, rollout, mask, level=level, estimator=estimator, low=low, high=high)
        keep = keep & kept_by[rule]
    close(keep.double(), g.case["mask"], EXACT, mask)
    check_rejected_shares(g, kept_by, keep)


def check_rejected_shares(g: Golden, kept_by: dict[str, Tensor], keep: Tensor) -> None:
    """What was rejected; the reference's other figures describe its statistic, which the masks pin down."""
    mask, rows = g.mask, g.mask.any(-1)

    def shares(kept: Tensor) -> tuple[float, int]:
        dropped = mask & ~kept
        return int(dropped.sum()) / int(mask.sum()), int(dropped.any(-1).sum())

    for rule, kept in kept_by.items():
        tokens, touched = shares(kept)
        close(g.case["metrics"][f"rollout_rs_{rule}_masked_fraction"], tokens, EXACT)
        close(g.case["metrics"][f"rollout_rs_{rule}_seq_masked_fraction"], touched / int(rows.sum()), FLOAT32)
    tokens, touched = shares(keep)
    close(g.case["metrics"]["rollout_rs_masked_fraction"], tokens, EXACT)
    close(g.case["metrics"]["rollout_rs_seq_masked_fraction"], touched / len(mask), FLOAT32)


@check("verl_rollout_corr", "offpolicy_metrics")
def mismatch(g: Golden) -> None:
    g.only("metrics")
    ours = mismatch_metrics(g.tensor("old_log_prob"), g.tensor("rollout_log_prob"), g.mask)
    rows, all_rows = int(g.mask.any(-1).sum()), len(g.mask)
    # The reference averages over all rows and takes one without tokens for logprob 0: perplexity 1, ratio 1.
    empty = {"training_ppl": 1.0, "rollout_ppl": 1.0, "ppl_ratio": 1.0}
    by_row = {"training_log_ppl", "rollout_log_ppl", "log_ppl_diff", "log_ppl_abs_diff", "chi2_seq", *empty}
    for name, figure in g.case["metrics"].items():
        assert name in ours, f"unknown metric {name}"
        value = ours[name]
        if name in by_row:
            value = (value * rows + empty.get(name, 0.0) * (all_rows - rows)) / all_rows
        if rows < all_rows and name in ("log_ppl_diff_max", "log_ppl_diff_min"):
            value = max(value, 0.0) if name.endswith("max") else min(value, 0.0)
        close(value, figure, EXACT)
