"""trl: `GRPOTrainer._compute_loss`; entropies are |values|, advantages one a row."""

import torch

from flywheel.trainers.aggregation import Denominators, aggregate
from flywheel.trainers.corrections import off_policy_mask, top_quantile_mask
from flywheel.trainers.divergences import kl_estimate
from flywheel.trainers.losses import clip_loss, sapo_loss, weighted_logp_loss
from tests.trainers.golden.registry import Golden, check, close, gradient

EXACT = 1e-9
FIELDS = (
    "loss_type",
    "level",
    "beta",
    "delta",
    "eps",
    "eps_high",
    "top_entropy_quantile",
    "off_policy_mask_threshold",
    "entropy_coef",
    "max_completion_length",
    "num_items_in_batch",
)
MODES = {
    "grpo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "cispo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}


@check("trl_grpo_losses", r".+")
def losses(g: Golden) -> None:
    g.only("loss", "grad_log_prob", *FIELDS)
    case, mask = g.case, g.mask
    assert case["loss_type"] in MODES, f"unknown loss type {case['loss_type']}"
    logp, old = g.tensor("log_prob", grad=True), g.tensor("old_log_prob")
    advantage = g.tensor("advantages_seq")[:, :1].expand_as(logp)
    low, high = case["eps"], case["eps_high"]
    if case["loss_type"] == "cispo":
        # Here the bound is that of the ratio itself, and there is none below.
        terms = weighted_logp_loss(logp, old, advantage, mask, None, high - 1)
    elif case["loss_type"] == "sapo":
        # Its temperatures pass through float32.
        terms = sapo_loss(logp, old, advantage, mask, negative=float(torch.tensor(1.05)))
    else:
        terms = clip_loss(logp, old, advantage, mask, low, high, level=case["level"], cap=case["delta"])
    loss_BT, entropy = terms.loss_BT, g.tensor("values").abs()
    if case["off_policy_mask_threshold"] is not None:
        kept = off_policy_mask(logp, old, advantage, mask, case["off_policy_mask_threshold"])
        loss_BT = loss_BT * kept
    if case["top_entropy_quantile"] < 1:
        loss_BT = loss_BT * top_quantile_mask(entropy, mask, 1 - case["top_entropy_quantile"])
    loss_BT = loss_BT + case["beta"] * kl_estimate(logp, g.tensor("ref_log_prob"), "k3", limit=None)
    # Rows without tokens count as rows here.
    tokens = int(case["num_items_in_batch"]) if case["loss_type"] in ("dapo", "cispo") else int(mask.sum())
    counts = Denominators(tokens, len(mask), horizon=case["max_completion_length"])
    loss = aggregate(loss_BT, mask, MODES[case["loss_type"]], counts)
    loss = loss - case["entropy_coef"] * aggregate(entropy, mask, "token-mean")
    close(loss, case["loss"], EXACT)
    close(gradient(loss, logp), case["grad_log_prob"], EXACT, mask)
    assert torch.isfinite(loss)
