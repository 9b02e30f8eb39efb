"""Labels of supervised fine-tuning, and the statistics of evaluation."""

import torch

from flywheel.evaluation.statistics import mcnemar_chi2, mcnemar_exact, paired_bootstrap, pass_at_k, wilson
from flywheel.trainers.advantages import overlong_penalty
from flywheel.trainers.labels import IGNORE, sft_labels
from tests.trainers.golden.registry import Golden, check, close

EXACT = 1e-9
QWEN = {"im_start": 151644, "assistant": 77091, "newline": 198, "im_end": 151645}


@check("sft_mask", r".+")
def labels(g: Golden) -> None:
    g.only("ids", "turn_ok", "corrected", "corrected_all", "reference_all_turns", *QWEN)
    marks = {name: g.case.get(name, default) for name, default in QWEN.items()}
    ids = g.case["ids"]
    assert sft_labels(ids, **marks, turn_flags=g.case["turn_ok"]).tolist() == g.case["corrected"]
    every_turn = sft_labels(ids, **marks).tolist()
    assert every_turn == g.case.get("corrected_all", every_turn)
    if "reference_all_turns" in g.case:
        # The known defect: it supervises what follows a bare "assistant", and the newline after each turn.
        pairs = list(zip(every_turn, g.case["reference_all_turns"], strict=True))
        assert all(theirs == ours for ours, theirs in pairs if ours != IGNORE)
        assert any(theirs != ours for ours, theirs in pairs)


@check("eval_stats", "wilson95")
def wilson_intervals(g: Golden) -> None:
    for row in g.case:
        assert set(row) == {"k", "n", "lo", "hi"}
        close(wilson(row["k"], row["n"]), (row["lo"], row["hi"]), EXACT)


@check("eval_stats", "pass_at_k")
def passes(g: Golden) -> None:
    for row in g.case:
        assert set(row) == {"n", "c", "k", "value", "exact"}
        close(pass_at_k(row["n"], row["c"], row["k"]), row["value"], EXACT)
        close(pass_at_k(row["n"], row["c"], row["k"]), row["exact"], EXACT)


@check("eval_stats", "mcnemar")
def mcnemar(g: Golden) -> None:
    for row in g.case:
        assert set(row) == {"b", "c", "exact_p", "chi2_cc", "p_cc"}
        close(mcnemar_exact(row["b"], row["c"]), row["exact_p"], EXACT)
        approximation = mcnemar_chi2(row["b"], row["c"])
        assert (approximation is None) == (row["chi2_cc"] is None)
        if approximation is not None:
            close(approximation, (row["chi2_cc"], row["p_cc"]), EXACT)


@check("eval_stats", "paired_bootstrap")
def bootstrap(g: Golden) -> None:
    g.only("a", "b", "seed", "reps", "index", "diff", "lo", "hi")
    c = g.case
    assert c["index"] == "default_rng(seed).integers(0,n,(reps,n))", "another way to draw than ours"
    close(paired_bootstrap(c["a"], c["b"], seed=c["seed"], repetitions=c["reps"]), (c["diff"], c["lo"], c["hi"]), EXACT)


@check("eval_stats", "overlong_dapo")
def overlong(g: Golden) -> None:
    for row in g.case:
        assert set(row) == {"length", "max_len", "buffer", "factor", "reward"}
        length = torch.tensor([row["length"]], dtype=torch.float64)
        penalty = overlong_penalty(length, row["max_len"], row["buffer"], row["factor"])
        close(penalty, [row["reward"]], EXACT)
