"""SDPO: self-distillation, by the authors' code and by trl's."""

import torch
from torch import Tensor

from flywheel.trainers.aggregation import aggregate
from flywheel.trainers.distillation import distillation_loss, ema, importance_clip, sampled_token_loss
from tests.trainers.golden.registry import Golden, check, close, gradient, inputs_of, number

EXACT = 1e-6
inputs_of("sdpo", "inputs")


def sampled_logp(g: Golden, logits: Tensor) -> Tensor:
    ids = torch.tensor(g.inputs["completion_ids"])
    return logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]


@check("sdpo", r"(?:topk_tail|topk_notail|full|token)\|.+")
def authors(g: Golden) -> None:
    g.only("config", "agg", "loss", "grad_student_logits")
    config = dict(g.case["config"])
    student, teacher = g.tensor("student_logits", grad=True), g.tensor("teacher_logits")
    logp = sampled_logp(g, student)
    alpha, k = config.pop("alpha"), config.pop("distillation_topk")
    rest = "tail" if config.pop("distillation_add_tail") else "renormalise"
    clip = config.pop("is_clip")
    if config.pop("full_logit_distillation"):
        loss_BT = distillation_loss(student, teacher, alpha=alpha, k=k, rest=rest)
    else:
        loss_BT = sampled_token_loss(logp, sampled_logp(g, teacher))
    assert not config, f"unknown settings {sorted(config)}"
    if clip is not None:
        loss_BT = loss_BT * importance_clip(logp, g.tensor("old_log_probs"), clip)
    mask = g.mask & g.tensor("self_distillation_mask").bool()[:, None]
    loss = aggregate(loss_BT, mask, g.case["agg"])
    close(loss, g.case["loss"], EXACT)
    close(gradient(loss, student), g.case["grad_student_logits"], EXACT)


@check("sdpo", rf"trl_(?:topk\|alpha{number('alpha')}\|tail=(?P<tail>True|False)|full\|alpha{number('whole')})")
def trl_divergence(g: Golden) -> None:
    student, teacher = g.tensor("student_logits"), g.tensor("teacher_logits")
    if g["whole"] is not None:
        loss_BT = distillation_loss(student, teacher, alpha=float(g["whole"]), k=None)
    else:
        rest = "tail" if g["tail"] == "True" else "renormalise"
        loss_BT = distillation_loss(student, teacher, alpha=float(g["alpha"]), k=g.inputs["K"], rest=rest)
    close(loss_BT, g.case, EXACT)


@check("sdpo", "trl_sampled_token")
def trl_sampled(g: Golden) -> None:
    student, teacher = (sampled_logp(g, g.tensor(name)) for name in ("student_logits", "teacher_logits"))
    close(sampled_token_loss(student, teacher), g.case, EXACT)


@check("sdpo", "ema")
def moving_average(g: Golden) -> None:
    g.only("rate", "teacher", "student", "out")
    teacher, student = (torch.tensor(g.case[name], dtype=torch.float64) for name in ("teacher", "student"))
    close(ema(teacher, student, g.case["rate"]), g.case["out"], EXACT)
