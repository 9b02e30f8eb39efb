"""The columns of the store: one declaration for the files, the views, the documentation and the tests.

`EPISODES` has a row for each trajectory, `STEPS` a row for each turn. The three derived views are declared with the
SQL that makes them. Types are Arrow's; `duckdb_type` says what SQL shows for them.
"""

from dataclasses import dataclass

import pyarrow as pa

FORMAT_VERSION = 2
"""Raised when a column changes its meaning or a file its form; a store of another version is refused."""

TEXT, FLAG, INT, LONG, REAL = pa.string(), pa.bool_(), pa.int32(), pa.int64(), pa.float64()
TOKENS = pa.list_(INT)
LOGPROBS = pa.list_(REAL)
TERMS = pa.map_(TEXT, REAL)

_SQL_TYPES = {
    TEXT: "VARCHAR",
    FLAG: "BOOLEAN",
    INT: "INTEGER",
    LONG: "BIGINT",
    REAL: "DOUBLE",
    TOKENS: "INTEGER[]",
    LOGPROBS: "DOUBLE[]",
    TERMS: "MAP(VARCHAR, DOUBLE)",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its Arrow type in the files and what it holds.

    Where SQL shows something friendlier than the file holds, `sql` is the expression and `sql_type` its type.
    """

    name: str
    type: pa.DataType
    doc: str
    sql: str = ""
    sql_type: str = ""


@dataclass(frozen=True, slots=True)
class DerivedView:
    """A view over `episodes`: what it is for, its query and its columns in order."""

    name: str
    doc: str
    sql: str
    columns: tuple[Column, ...]


def duckdb_type(column: Column) -> str:
    """The type as DuckDB's DESCRIBE prints it."""
    return column.sql_type or _SQL_TYPES[column.type]


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([(column.name, column.type) for column in columns])


_KEYS = (
    Column("experiment", TEXT, "outermost key: the flywheel that made it"),
    Column("iteration", INT, "iteration of the flywheel, from 0"),
    Column("partition", TEXT, "what was rolled out together, e.g. `iter-01`, `grpo-01`, `eval-iter-01`"),
    Column("attempt", INT, "ordinal of the try that made this partition, from 1"),
    Column("episode_id", TEXT, "id of the trajectory"),
    Column("policy", TEXT, "version of the policy that acted"),
)

_TASK = (
    Column("task_id", TEXT, "id of the task"),
    Column("domain", TEXT, "application domain of the task"),
    Column("family", TEXT, "task family, empty where the task set has none"),
    Column("level", INT, "difficulty, from 1"),
    Column("split", TEXT, "`train` or `heldout`"),
    Column("instruction", TEXT, "what the agent was asked to do"),
    Column("infeasible", FLAG, "the right answer is that it cannot be done"),
    Column("platform", TEXT, "which desktop plays the task"),
)

EPISODES = (
    *_KEYS,
    Column("policy_uri", TEXT, "folder or hub id of its weights"),
    Column("policy_parent", TEXT, "version it was trained from; NULL for a base model"),
    Column("policy_fingerprint", TEXT, "hash of its weights"),
    *_TASK,
    Column("task_config", TEXT, "set-up steps, JSON"),
    Column("task_evaluator", TEXT, "the checker, JSON"),
    Column("task_raw", TEXT, "the whole task file as read, JSON"),
    Column("group_id", TEXT, "episodes compared with each other by a policy gradient share it"),
    Column("worker", TEXT, "which worker played it"),
    Column("n_steps", INT, "turns"),
    Column("seed", LONG, "seed of the episode"),
    Column("success", FLAG, "`task_reward` is at least 0.5; false where it was not judged"),
    Column("task_reward", REAL, "verdict of the task's own checker, 0 to 1; NULL when it was not judged"),
    Column("shaped_reward", REAL, "reward with shaping terms; never used as a measure of success"),
    Column("reward_terms", TERMS, "the terms of the shaped reward by name"),
    Column("outcome", TEXT, "`completed`, `truncated` or `failed`"),
    Column("failure", TEXT, "`infrastructure`, `setup`, `agent` or `evaluator`; NULL unless it failed"),
    Column("stop_reason", TEXT, "`done`, `answer`, `max_turns`, `unparsed` or `error`"),
    Column("error", TEXT, "what failed, in a sentence"),
    Column("advantage", REAL, "advantage that the policy gradient used; NULL elsewhere"),
    Column("action_space", TEXT, "name and version of the action space"),
    Column("temperature", REAL, "sampling temperature; 0 is greedy"),
    Column("top_p", REAL, "nucleus mass"),
    Column("max_tokens", INT, "tokens that a completion may have"),
    Column("sampling_seed", LONG, "seed of the sampler"),
    Column(
        "started_at",
        REAL,
        "when it began, UTC (seconds since the epoch in the files)",
        sql="make_timestamp(CAST(started_at * 1e6 AS BIGINT))",
        sql_type="TIMESTAMP",
    ),
    Column("wall_seconds", REAL, "how long it took"),
)

STEPS = (
    *_KEYS,
    Column("step", INT, "number of the turn, from 0"),
    Column("prompt_ids", TOKENS, "prompt tokens added since the previous turn"),
    Column("completion_ids", TOKENS, "tokens sampled in this turn"),
    Column("logprobs", LOGPROBS, "natural logarithm of the probability of each, as sampled"),
    Column("text", TEXT, "what the model said"),
    Column("action_type", TEXT, "`click`, `type`, ...; NULL when the text could not be read"),
    Column("action", TEXT, "the action, JSON with its `type`; pixels"),
    Column("executed", FLAG, "the desktop carried the action out"),
    Column("fallback", FLAG, "the text was in an older format than the action space's own"),
    Column("error", TEXT, "why the text could not be read or the action not executed"),
    Column("finish_reason", TEXT, "why sampling ended, e.g. `stop` or `length`"),
    Column("model_seconds", REAL, "time the model took"),
    Column("env_seconds", REAL, "time the desktop took"),
    Column("last_result", TEXT, "what became of the action before"),
    Column("terminal", TEXT, "terminal output, where the desktop gives it"),
    Column("accessibility_tree", TEXT, "accessibility tree, where the desktop gives it (compressed on disk)"),
    Column("image_hash", TEXT, "sha256 of the stored image; NULL without a screenshot"),
    Column("image_codec", TEXT, "`png`, `webp` or `jpeg`"),
    Column("image_width", INT, "pixels"),
    Column("image_height", INT, "pixels"),
    Column("image_pack", TEXT, "file that holds the image, relative to the store's root; NULL until it is sealed"),
    Column("image_offset", LONG, "first byte of the image in that file"),
    Column("image_length", LONG, "bytes of the image"),
    Column("image_grid", TOKENS, "(t, h, w) in patches, as the model saw it"),
)

EPISODES_SCHEMA = arrow_schema(EPISODES)
STEPS_SCHEMA = arrow_schema(STEPS)

_COUNTS = (
    Column("episodes", LONG, "trajectories"),
    Column("judged", LONG, "of these, judged by the task's checker"),
    Column("solved", LONG, "of these, successful"),
    Column("success_rate", REAL, "`solved / judged`; NULL when none was judged"),
)
_COUNTS_SQL = """count(*) AS episodes, count(task_reward) AS judged, count(*) FILTER (success) AS solved,
    count(*) FILTER (success) / nullif(count(task_reward), 0) AS success_rate"""

DERIVED = (
    DerivedView(
        "tasks",
        "Every task that was ever played, over all experiments.",
        f"""SELECT task_id, any_value(domain) AS domain, any_value(family) AS family, any_value(level) AS level,
    any_value(split) AS split, any_value(instruction) AS instruction, any_value(infeasible) AS infeasible,
    any_value(platform) AS platform, {_COUNTS_SQL}
FROM episodes GROUP BY task_id""",
        (*_TASK, *_COUNTS),
    ),
    DerivedView(
        "policies",
        "Every policy that ever acted, by experiment.",
        f"""SELECT experiment, policy, any_value(policy_parent) AS parent, any_value(policy_uri) AS uri,
    any_value(policy_fingerprint) AS fingerprint, min(iteration) AS first_iteration, {_COUNTS_SQL},
    avg(n_steps) AS mean_steps
FROM episodes GROUP BY experiment, policy""",
        (
            Column("experiment", TEXT, "outermost key: the flywheel that made it"),
            Column("policy", TEXT, "version"),
            Column("parent", TEXT, "version it was trained from; NULL for a base model"),
            Column("uri", TEXT, "folder or hub id of its weights"),
            Column("fingerprint", TEXT, "hash of its weights"),
            Column("first_iteration", INT, "first iteration in which it acted"),
            *_COUNTS,
            Column("mean_steps", REAL, "turns an episode"),
        ),
    ),
    DerivedView(
        "eval_results",
        "Success in evaluation partitions (named `eval-*` or `nightly-*`), by policy, split and family.",
        f"""SELECT experiment, partition, policy, split, family, {_COUNTS_SQL},
    count(*) FILTER (outcome = 'failed' AND failure IN ('infrastructure', 'setup', 'evaluator')) AS env_errors
FROM episodes WHERE partition LIKE 'eval-%' OR partition LIKE 'nightly-%'
GROUP BY experiment, partition, policy, split, family""",
        (
            Column("experiment", TEXT, "outermost key: the flywheel that made it"),
            Column("partition", TEXT, "evaluation that this was"),
            Column("policy", TEXT, "version that was evaluated"),
            Column("split", TEXT, "`train` or `heldout`"),
            Column("family", TEXT, "task family"),
            *_COUNTS,
            Column("env_errors", LONG, "failed for infrastructure, set-up or the checker; not counted as judged"),
        ),
    ),
)


def markdown() -> str:
    """The tables of `docs/store.md`, one for each view."""
    steps = "One row for each turn. Join with `episodes` on `episode_id` (and `partition`, `experiment`)."
    views = [("episodes", "One row for each trajectory.", EPISODES), ("steps", steps, STEPS)]
    views += [(view.name, view.doc, view.columns) for view in DERIVED]
    parts = []
    for name, doc, columns in views:
        rows = [f"| `{column.name}` | {duckdb_type(column)} | {column.doc} |" for column in columns]
        parts.append("\n".join([f"### {name}", "", doc, "", "| column | type | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"
