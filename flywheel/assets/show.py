"""Metadata that people look at: numbers that Dagster plots, film strips, the curve so far."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from flywheel.evaluation.plots import success_by_iteration
from flywheel.resources.jobs import StageRun
from flywheel.store.store import TrajectoryStore
from flywheel.store.viewer import film_strip_png
from flywheel.types import EvalReport

Metadata = dict[str, Any]
FILM_TURNS = 6
THROUGHPUT = ("tokens_per_second", "steps_per_second")


def stage(run: StageRun) -> Metadata:
    """Seconds, throughput, and where the run's files and curves are."""
    metadata: Metadata = {
        "wall_seconds": run.wall_seconds,
        "stage_seconds": run.stage_seconds,
        "run_folder": dg.MetadataValue.path(run.run_dir),
    }
    metadata |= {name: float(run.result[name]) for name in THROUGHPUT if name in run.result}
    if run.tracking_link:
        is_url = run.tracking_link.startswith("http")
        metadata["mlflow"] = dg.MetadataValue.url(run.tracking_link) if is_url else run.tracking_link
    return metadata


def checkpoint(run: StageRun) -> dg.MaterializeResult:
    """What there is to say of a trained checkpoint; its data version is the hash of its weights."""
    trained = run.result["policy"]
    metadata: Metadata = {
        "version": trained["version"],
        "parent": trained["parent"] or "none",
        "checkpoint": dg.MetadataValue.path(trained["uri"]),
        **numbers(run.result, "steps", "updates", "episodes", "loss", "tokens", "success_first", "success_last"),
        **stage(run),
        **guards(run.result),
        **validation(run.result),
    }
    version = dg.DataVersion(trained["fingerprint"] or trained["version"])
    return dg.MaterializeResult(metadata=metadata, data_version=version)


def guards(result: Mapping[str, Any]) -> Metadata:
    """Every guard of policy gradient with its last and worst figure and what it counted, and what was done about it."""
    if not result.get("guards"):
        return {}
    head = ["| guard | last | worst | warns | reacts | warned | reacted |", "|---|---|---|---|---|---|---|"]
    rows = [
        f"| {row['guard']} | {_figure(row['last'])} | {_figure(row['worst'])} | {_limit(row, 'warn')} "
        f"| {_limit(row, 'react')} | {row['warned']} | {row['reacted']} |"
        for row in result["guards"]
    ]
    lines = [f"- update {done['update']}: {done['why']}: {done['did']}" for done in result["reactions"]]
    table = "\n".join([*head, *rows, "", *(lines or ["Nothing had to be done."])])
    return {"guards": dg.MetadataValue.md(table), "guard_reactions": len(lines)}


def validation(result: Mapping[str, Any]) -> Metadata:
    """Success on the way, on tasks that policy gradient did not practise, and after which update it was published."""
    if not result.get("validation"):
        return {}
    rows = [
        f"| {point['update']} | {point['success']:.1%} | {point['ci_low']:.1%} to {point['ci_high']:.1%} |"
        for point in result["validation"]
    ]
    table = "\n".join(["| updates | success | 95% interval |", "|---|---|---|", *rows])
    return {"validation": dg.MetadataValue.md(table), "kept_update": result["kept_update"]}


def _figure(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3g}"


def _limit(row: Mapping[str, Any], level: str) -> str:
    return "" if row[level] is None else f"{row['bad']} {row[level]:g}"


def numbers(result: Mapping[str, Any], *names: str) -> Metadata:
    """Those of the named figures that there are, as Dagster plots them."""
    return {name: result[name] for name in names if isinstance(result.get(name), int | float)}


def success(result: Mapping[str, Any]) -> Metadata:
    """Success with its 95% Wilson interval, in all and by family."""
    sentence = f"**{result['success_rate']:.1%}** ({result['ci_low']:.1%} to {result['ci_high']:.1%})"
    metadata: Metadata = {"success": dg.MetadataValue.md(sentence)}
    metadata |= numbers(result, "success_rate", "ci_low", "ci_high", "episodes", "judged", "solved", "env_errors")
    if result.get("by_family"):
        metadata["by_family"] = _families(result["by_family"])
    return metadata


def teacher(result: Mapping[str, Any]) -> Metadata:
    """Who was called because the student solved too little, and what came of it; empty where nobody was."""
    called = result.get("teacher") or {}
    return {f"teacher/{name}": value for name, value in called.items()}


def reward_terms(result: Mapping[str, Any]) -> Metadata:
    """The mean of each term, one number each."""
    return {f"reward/{name}": float(value) for name, value in result.get("reward_terms", {}).items()}


def films(store: TrajectoryStore, experiment: str, result: Mapping[str, Any]) -> Metadata:
    """Film strips of one success and one failure, where there are any."""
    metadata: Metadata = {}
    for name in ("success", "failure"):
        id_ = result.get(f"{name}_id")
        if id_:
            trajectory = store.read(id_, partition=result["partition"], experiment=experiment)
            metadata[f"film_{name}"] = _picture(film_strip_png(trajectory, FILM_TURNS), id_)
    return metadata


def sql(partition: str) -> Metadata:
    """A query to start from."""
    query = f"SELECT family, avg(success::INT) FROM episodes WHERE partition = '{partition}' GROUP BY family"
    return {"sql": dg.MetadataValue.md(f'```\nflywheel sql "{query}"\n```')}


def curve(reports: Sequence[EvalReport]) -> Metadata:
    """Held-out success against iteration, with intervals; iteration 0 is the starting policy."""
    picture = success_by_iteration(reports)
    return {"success_curve": _picture(picture, "success by iteration")}


def _picture(png: bytes, caption: str) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md(f"![{caption}](data:image/png;base64,{base64.b64encode(png).decode()})")


def _families(families: Mapping[str, Mapping[str, float]]) -> dg.MarkdownMetadataValue:
    rows = [
        f"| {name} | {rates['success_rate']:.1%} | {rates['solved']:.0f} of {rates['episodes']:.0f} |"
        for name, rates in families.items()
    ]
    return dg.MetadataValue.md("\n".join(["| family | success | solved |", "|---|---|---|", *rows]))
