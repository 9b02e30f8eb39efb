"""docs/algorithms.md, from the table: `python -m flywheel.trainers.algorithms_page` prints it."""

from collections.abc import Callable
from functools import partial
from typing import Any

from flywheel.trainers.algorithms import TABLE, Algorithm
from flywheel.trainers.corrections import CORRECTIONS

HEAD = """# Algorithms

`flywheel train grpo --set rl.algorithm=NAME` trains by any row of this table, on every profile. A row is a choice of
parts; `flywheel/trainers/algorithms.py` is where it is written, and the parts are functions of `advantages.py`,
`steps.py`, `losses.py`, `aggregation.py`, `critic.py` and `corrections.py` beside it, tested in value and gradient
against figures of the reference implementations (`tests/golden`).

How an update goes: groups of episodes are played and judged; *credit* gives every trained token an advantage (and,
where asked for, a correction weight); the *objective* makes a loss of packed rows; rows of advantage 0 cost no forward
pass but count in the denominators, which are those of the whole optimiser step.

- `rl.clip_low`, `rl.clip_high`, `rl.aggregation` and `rl.correction` take the place of what the table says;
  `rl.sequence_clip_low` and `rl.sequence_clip_high` do so for ratios of whole sequences only, so that a profile of a
  tiny model can widen GSPO's bounds and leave the others theirs.
- `rl.kl` with `rl.kl_estimator`, and `rl.entropy`, add their terms to any algorithm but `sdpo` and `webrl`.
- Clips of a ratio of tokens are dual (3): the loss of a token with negative advantage is bounded.
- A critic is a linear head on the policy's hidden states that sends no gradient into them; `rl.critic_lr`,
  `rl.critic_steps`, `rl.value_pretraining`. It lies in the trainer's states. That of `ppo` and `vapo` is also told what
  the task's other rollouts of the update got, where it starts: on the embedded profile, hidden states alone explain
  nothing of the outcomes of tasks not seen before, that mean .35 of the variance.
- Replay (`rl.replay`), practice where it fails (`rl.focus`) and [guards](guards.md) go with every row.
- An update logs `mean_abs_dlogp` and `mismatch_k3`: how far the engine's logprobs are from the trainer's.
"""


def page() -> str:
    """The whole page, Markdown."""
    overview = ["| algorithm | advantage | by | loss | aggregation | clip | needs |", "|---|---|---|---|---|---|---|"]
    overview += [_overview(entry) for entry in TABLE]
    details = [_details(entry) for entry in TABLE]
    corrections = ["## Corrections (`rl.correction`)", "", "w = exp(trainer - engine) of each sampled token.", ""]
    corrections += ["| name | what is done | bounds |", "|---|---|---|"]
    for name, one in CORRECTIONS.items():
        used = one.weigh or one.reject
        what = "nothing" if used is None else f"{'weighs' if one.weigh else 'rejects'}: `{_called(used)}`"
        corrections.append(f"| `{name}` | {what} | {f'{one.low:g} to {one.high:g}' if used else ''} |")
    return "\n".join([HEAD, *overview, "", *details, *corrections]) + "\n"


def _overview(entry: Algorithm) -> str:
    bounds = [entry.clip_low, entry.clip_high]
    clip = " / ".join("none" if bound is None else f"{bound:g}" for bound in dict.fromkeys(bounds))
    needs = [*sorted(entry.needs), *([f"critic ({entry.critic})"] if entry.critic else [])]
    if entry.correction != "none":
        needs.append(f"correction ({entry.correction}, {entry.correction_high:g})")
    loss = f"`{_called(entry.loss)}`" if entry.objective != "self_distillation" else "`self_distillation`"
    cells = (
        f"[`{entry.name}`](#{entry.name})",
        f"`{_called(entry.advantage)}`",
        entry.unit,
        loss + (", rows are steps" if entry.rows == "step" else ""),
        f"`{entry.aggregation}`",
        clip,
        ", ".join(needs).replace("_", " "),
    )
    return "| " + " | ".join(cells) + " |"


def _details(entry: Algorithm) -> str:
    return f"## {entry.name}\n\n- Keeps: {entry.keeps}.\n- Drops: {entry.drops}.\n- Source: {entry.source}.\n"


def _called(function: Callable[..., Any]) -> str:
    """`partial(group_relative, scale="none")` -> `group_relative(scale=none)`."""
    if not isinstance(function, partial):
        return function.__name__
    settings = ", ".join(f"{name}={value}" for name, value in function.keywords.items())
    return f"{function.func.__name__}({settings})"


if __name__ == "__main__":
    print(page(), end="")
