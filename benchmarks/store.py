"""The trajectory store: episodes a second, KB a step, SQL and reads, each against a named baseline in the same process.

    python benchmarks/store.py [--episodes 200] [--folder .]

The folder should be on the disk that will hold the store: publishing flushes every episode. Screenshots are raw, as the
simulated desktop gives them, so publishing includes encoding them. Publishing alternates between the ways, so that a
busy machine slows all of them.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.store.rows import encode
from flywheel.store.store import TrajectoryStore
from flywheel.testing import random_trajectory
from flywheel.types import Trajectory

HISTOGRAM = "SELECT action_type, count(*), avg(model_seconds) FROM {} GROUP BY 1"
SQL_EPISODES, SQL_TURNS = 2500, 4
BULK_EPISODES = 640
BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=200, help="episodes to publish for each size")
    parser.add_argument("--folder", default=".", help="where the temporary stores are made")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(f"{'publish, fsync on':<34}{'episodes/s':>12}{'wall ms':>10}{'cpu ms':>10}{'KB/step':>10}")
        for width, height, turns in ((160, 128, 4), (320, 240, 4), (320, 240, 15)):
            _publish(Path(folder) / f"{width}-{turns}", (width, height), turns, arguments.episodes)
        print(f"\n{f'{SQL_EPISODES * SQL_TURNS:,} steps, {SQL_TURNS} an episode':<60}{'median ms':>10}")
        _read(Path(folder) / "sql")


def _publish(folder: Path, size: tuple[int, int], turns: int, episodes: int) -> None:
    store = TrajectoryStore(folder / "store")
    inline = folder / "inline"
    inline.mkdir()
    trajectories = [random_trajectory(f"{n:05d}", turns, size, codec="raw") for n in range(episodes)]
    batches = [trajectories[n : n + BATCH] for n in range(0, episodes, BATCH)]
    ways: dict[str, Callable[[Sequence[Trajectory]], object]] = {
        "publish": lambda batch: [store.publish(trajectory, partition="one") for trajectory in batch],
        f"publish_many of {BATCH}": lambda batch: store.publish_many(batch, partition="many"),
        "baseline: Parquet, images inline": lambda batch: _publish_inline(inline, batch),
    }
    wall, cpu = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0.0)
    for batch in batches:
        for name, way in ways.items():
            began, began_cpu = time.perf_counter(), time.process_time()
            way(batch)
            wall[name] += time.perf_counter() - began
            cpu[name] += time.process_time() - began_cpu
    sizes = dict(
        zip(ways, (*(_sealed_bytes(store, part, episodes) for part in ("one", "many")), _bytes(inline)), strict=True)
    )
    print(f"{size[0]}x{size[1]}, {turns} turns")
    for name in ways:
        rate, each = episodes / wall[name], 1e3 / episodes
        kilobytes = sizes[name] / (episodes * turns) / 1e3
        print(f"  {name:<32}{rate:>12.0f}{wall[name] * each:>10.2f}{cpu[name] * each:>10.2f}{kilobytes:>10.1f}")


def _publish_inline(folder: Path, trajectories: Sequence[Trajectory]) -> None:
    """A row a turn with episode and image in it, pyarrow's defaults, Pillow's PNG, the same flushes, one rename."""
    for trajectory in trajectories:
        _publish_one_inline(folder, trajectory)


def _publish_one_inline(folder: Path, trajectory: Trajectory) -> None:
    turns = [replace(turn, observation=replace(turn.observation, screenshot=None)) for turn in trajectory.turns]
    live = encode(replace(trajectory, turns=tuple(turns)), partition="p", attempt=1, codec="png")
    table = pa.Table.from_batches([live.steps])
    for field in live.episode.schema:
        if field.name not in table.column_names:
            value = live.episode.column(field.name).to_pylist()
            table = table.append_column(field, pa.array(value * table.num_rows, field.type))
    images = [turn.observation.screenshot.encode().data for turn in trajectory.turns if turn.observation.screenshot]
    staged = folder / f"{trajectory.id}.tmp"
    pq.write_table(table.append_column("image", pa.array(images, pa.binary())), staged)
    _flush(staged)
    staged.rename(folder / f"{trajectory.id}.parquet")
    _flush(folder)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _sealed_bytes(store: TrajectoryStore, partition: str, episodes: int) -> int:
    store.seal(partition, 1, episodes)
    return _bytes(store.root / "seg" / "default" / partition)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _read(folder: Path) -> None:
    store = TrajectoryStore(folder / "store", fsync=False)
    shapes = [random_trajectory(f"shape-{n}", SQL_TURNS, (160, 128)) for n in range(50)]
    all_of_them = [replace(shapes[n % 50], id=f"{n:05d}") for n in range(SQL_EPISODES)]
    store.publish_many(all_of_them, partition="iter-01")
    store.publish_many(all_of_them[:BULK_EPISODES], partition="iter-02")
    by_episode = folder / "by-episode.parquet"
    _one_group_an_episode(all_of_them, by_episode)
    for name in ("iter-01", "iter-02"):
        store.seal(name, 1, None)
    connection = store.connect()
    plain = duckdb.connect()
    baseline = f"read_parquet('{by_episode}')"
    histogram, wanted = HISTOGRAM.format("steps WHERE partition = 'iter-01'"), "'01234'"
    _show("open a connection", lambda: store.connect().close())
    _show("action histogram by SQL", lambda: connection.execute(histogram).fetchall())
    _show("  baseline: a row group an episode", lambda: plain.execute(HISTOGRAM.format(baseline)).fetchall())
    _show("read one trajectory with its images", lambda: store.read("01234", partition="iter-01"))
    one = f"SELECT * FROM {baseline} WHERE episode_id = {wanted}"
    _show("  baseline: its steps, a row group an episode, by SQL", lambda: plain.execute(one).fetchall())
    _show(f"read {BULK_EPISODES} trajectories with their images", lambda: store.trajectories("iter-02"))
    _show(
        f"  baseline: {BULK_EPISODES} times one trajectory",
        lambda: [store.read(f"{n:05d}", partition="iter-02") for n in range(BULK_EPISODES)],
        repeats=1,
    )


def _one_group_an_episode(trajectories: Sequence[Trajectory], path: Path) -> None:
    writer: pq.ParquetWriter | None = None
    for trajectory in trajectories:
        steps = encode(trajectory, partition="iter-01", attempt=1, codec="png").steps
        writer = writer or pq.ParquetWriter(path, steps.schema, compression="zstd")
        writer.write_batch(steps)
    if writer:
        writer.close()


def _show(name: str, call: Callable[[], object], repeats: int = 9) -> None:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    print(f"{name:<60}{sorted(seconds)[repeats // 2] * 1e3:>10.1f}", flush=True)


if __name__ == "__main__":
    main()
