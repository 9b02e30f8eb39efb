"""Evaluation reports on disk, and what they say about how to go on."""

import json

from flywheel.errors import DataError
from flywheel.evaluation.plateau import Decision, plateau
from flywheel.evaluation.report import from_json
from flywheel.types import EvalReport
from flywheel.workspace import Workspace, iteration_name

SFT = "sft"
"""Version of the policy that the flywheel starts from."""


def read_report(workspace: Workspace, version: str) -> EvalReport:
    """Raises `DataError` when the policy was not evaluated or the file is damaged."""
    path = workspace.report_path(version)
    try:
        return from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        raise DataError(f"Policy '{version}' has no evaluation report at {path}; evaluate it first.") from None
    except ValueError:
        raise DataError(f"The evaluation report {path} is damaged; evaluate '{version}' again.") from None


def history(workspace: Workspace, through: int) -> list[EvalReport]:
    """The starting policy and iterations 1 to `through`, in order."""
    return [read_report(workspace, version) for version in (SFT, *map(iteration_name, range(1, through + 1)))]


def decide(workspace: Workspace, through: int) -> Decision:
    """Whether the flywheel stops after iteration `through`, by the plateau rule with the profile's knobs."""
    knobs = workspace.config.flywheel
    return plateau(
        [report.per_task for report in history(workspace, through)],
        patience=knobs.patience,
        minimum=knobs.min_iterations,
        maximum=knobs.max_iterations,
        min_gain=knobs.min_delta,
    )


def best_iteration(reports: list[EvalReport], decision: Decision) -> int:
    """Which iteration seeds policy gradient: the rule's choice, or the best iteration if none beat the start."""
    return decision.best or max(range(1, len(reports)), key=lambda index: reports[index].success_rate)


def collapse(reports: list[EvalReport], limit: float) -> str | None:
    """A sentence when the last report fell more than `limit` below the best one before it."""
    best = max(reports[:-1], key=lambda report: report.success_rate, default=reports[-1])
    fall = best.success_rate - reports[-1].success_rate
    if fall <= limit:
        return None
    return (
        f"Success fell by {fall:.1%} from {best.policy.version} to {reports[-1].policy.version}, "
        f"more than the {limit:.0%} that flywheel.max_collapse allows."
    )


def best_report(workspace: Workspace) -> EvalReport | None:
    """The evaluated checkpoint with the highest held-out success, controls left out; None before there is one."""
    versions = [version for version in workspace.versions() if not version.startswith("control-")]
    reports = [read_report(workspace, version) for version in versions if workspace.report_path(version).is_file()]
    return max(reports, key=lambda report: report.success_rate, default=None)
