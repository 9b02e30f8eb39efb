"""Self-distillation (SDPO): the student learns from itself as it would have answered with hindsight.

The teacher is the same network (an EMA copy) conditioned on the prompt plus a successful sibling's solution or the
feedback, over the same response tokens. Keeps: the student's top-K support with one tail bucket, the generalised
Jensen-Shannon family, the clipped importance weight, the EMA teacher. Drops: the Renyi variants. Source:
arXiv:2601.20802.

Legend: B rows, T response tokens, V vocabulary, K support size.
"""

from typing import Literal

import torch
from torch import Tensor

from flywheel.trainers.losses import token_ratio


def top_k_support(
    student_logits_BTV: Tensor, teacher_logits_BTV: Tensor, k: int, *, rest: Literal["tail", "renormalise"] = "tail"
) -> tuple[Tensor, Tensor]:
    """Logprobs of both on the student's K likeliest tokens; the rest is one more bucket, or is left out.

    Returns: (student, teacher), (B, T, K + 1) with the tail, else (B, T, K).
    """
    top_BTK, index_BTK = student_logits_BTV.topk(k, dim=-1)
    student_BTK = top_BTK - student_logits_BTV.logsumexp(-1, keepdim=True)
    teacher_BTK = teacher_logits_BTV.gather(-1, index_BTK) - teacher_logits_BTV.logsumexp(-1, keepdim=True)
    if rest == "renormalise":
        return student_BTK.log_softmax(-1), teacher_BTK.log_softmax(-1)
    return _with_tail(student_BTK), _with_tail(teacher_BTK)


def _with_tail(logp_BTK: Tensor) -> Tensor:
    # Rounding can push the captured mass to 1 and over; 1e-7 keeps the tail's logarithm finite.
    captured = logp_BTK.logsumexp(-1, keepdim=True).clamp(max=-1e-7)
    return torch.cat([logp_BTK, torch.log(-torch.expm1(captured))], dim=-1)


def divergence(student_BTV: Tensor, teacher_BTV: Tensor, alpha: float) -> Tensor:
    """Divergence between two sets of logprobs, one value a token.

    alpha 0  KL(teacher || student);   alpha 1  KL(student || teacher)
    else     generalised JSD with M = (1 - alpha) student + alpha teacher:
             (1 - alpha) KL(student || M) + alpha KL(teacher || M)
    """
    if alpha == 0:
        return _kl(teacher_BTV, student_BTV)
    if alpha == 1:
        return _kl(student_BTV, teacher_BTV)
    weight = student_BTV.new_tensor(alpha)
    mixture_BTV = torch.logaddexp(student_BTV + torch.log(1 - weight), teacher_BTV + torch.log(weight))
    return (1 - alpha) * _kl(student_BTV, mixture_BTV) + alpha * _kl(teacher_BTV, mixture_BTV)


def _kl(p_BTV: Tensor, q_BTV: Tensor) -> Tensor:
    return (p_BTV.exp() * (p_BTV - q_BTV)).sum(-1)


def distillation_loss(
    student_logits_BTV: Tensor,
    teacher_logits_BTV: Tensor,
    *,
    alpha: float = 0.5,
    k: int | None = 100,
    rest: Literal["tail", "renormalise"] = "tail",
) -> Tensor:
    """loss_BT: the divergence on the student's top K, or on the whole vocabulary with `k=None`.

    Pass the teacher's logits without gradient; only the student's are to learn.
    """
    if k is None:
        return divergence(student_logits_BTV.log_softmax(-1), teacher_logits_BTV.log_softmax(-1), alpha)
    student, teacher = top_k_support(student_logits_BTV, teacher_logits_BTV, k, rest=rest)
    return divergence(student, teacher, alpha)


def sampled_token_loss(student_logp_BT: Tensor, teacher_logp_BT: Tensor) -> Tensor:
    """loss_BT from sampled tokens alone: sg(log student - log teacher) log student, the policy gradient of alpha 1."""
    return (student_logp_BT - teacher_logp_BT).detach() * student_logp_BT


def importance_clip(logp_BT: Tensor, old_logp_BT: Tensor, limit: float) -> Tensor:
    """weight_BT = sg(min(exp(logp - old), limit)), for rows sampled by an older policy."""
    return token_ratio(logp_BT, old_logp_BT).detach().clamp(max=limit)


def ema(teacher: Tensor, student: Tensor, rate: float) -> Tensor:
    """The teacher's next weights: (1 - rate) teacher + rate student."""
    return torch.lerp(teacher, student, rate)
