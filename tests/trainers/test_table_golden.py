"""Rows of the table, whole, against the figures of the reference implementation: value and gradient.

`test_golden.py` checks the parts; here a row puts them together, with its own clip and aggregation wherever the
reference was run with them. `sdpo` and `webrl` bring objectives of their own, which are checked there.
"""

import pytest
import torch

from flywheel.trainers.aggregation import Denominators
from flywheel.trainers.algorithms import ALGORITHMS, algorithm
from flywheel.trainers.corrections import correct
from flywheel.trainers.policy_loss import policy_loss
from tests.trainers.golden.registry import OWN, close, gradient, read

CASES = {
    **dict.fromkeys(
        ("ppo", "critic_free_ppo", "reinforce_pp", "reinforce_pp_baseline", "opo", "step_grpo", "gigpo"),
        "vanilla|token-mean",
    ),
    "grpo": "vanilla|seq-mean-token-mean",
    "rloo": "vanilla|seq-mean-token-sum",
    "dr_grpo": "vanilla|seq-mean-token-sum-norm",
    "vapo": "vanilla_clip_higher|token-mean",
    "dapo": "vanilla_clip_higher|token-mean",
    "dart": "vanilla_tis1.0(dart)|token-mean",
    "gspo": "gspo_3e-4_4e-4|seq-mean-token-mean",
    "gspo_token": "gspo_token_level_adv_3e-4_4e-4|seq-mean-token-mean",
    "cispo": "cispo|token-mean",
    "gmpo": "geo_mean|token-mean",
    "sapo": "sapo|token-mean",
    "dppo": "dppo_tv|token-mean",
    "gpg": "gpg|token-mean",
}
ASKED = ("cispo", "gmpo", "dppo")
"""The reference was run with other bounds than theirs."""


def test_every_row_has_its_figures() -> None:
    assert {name for name, entry in ALGORITHMS.items() if entry.objective == "policy"} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_row_of_the_table_is_the_reference(name: str) -> None:
    case, entry = read(OWN / "verl_policy_losses.json")["cases"][CASES[name]], algorithm(name)
    inputs = read(OWN / "inputs_common.json")["cases"]
    names = ("log_prob", "old_log_prob", "rollout_log_prob", case["advantages"])
    logp, old, rollout, advantage = (torch.tensor(inputs[given], dtype=torch.float64) for given in names)
    mask = torch.tensor(inputs["response_mask"]).bool()
    bounds = {"clip_low": case["clip_low"], "clip_high": case["clip_high"]} if name in ASKED else {}
    if name in ("ppo", "grpo", "vapo", "dapo", "dart", "gspo", "gspo_token"):
        assert (entry.clip_low, entry.clip_high) == (case["clip_low"], case["clip_high"])
    weight = correct(entry.correction, old, rollout, mask, high=entry.correction_high)[0]
    # The reference takes the plain mean over rows for the geometric mean, one without tokens included.
    counts = Denominators(int(mask.sum()), len(mask), horizon=1) if name == "gmpo" else None
    logp.requires_grad_()
    loss, _ = policy_loss(entry, logp, old, advantage, mask, weight_BT=weight, denominators=counts, **bounds)
    close(loss, case["loss"], 1e-8)
    close(gradient(loss, logp), case["grad_log_prob"], 1e-8, mask)
