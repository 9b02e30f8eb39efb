"""Fills the offline cache with the files that tasks download, so that episodes need no network and stay as they are."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import tenacity

from flywheel.datasets.needs import Download, cache_name, missing_files
from flywheel.types import Task

AT_ONCE = 8
ATTEMPTS = 4
TIMEOUT = httpx.Timeout(30.0, connect=10.0)
_PASSING = (429, 500, 502, 503, 504)


def fetch(tasks: Sequence[Task], cache: Path, on_done: Callable[[int, int], None]) -> list[str]:
    """Download what the cache lacks of these tasks; each file appears whole or not at all.

    Args:
        on_done: called with how many of how many files have been dealt with.
    Returns: one sentence for each file that could not be had.
    """
    wanted = {(cache / cache_name(task.id) / file.name, file) for task in tasks for file in missing_files(task, cache)}
    problems: list[str] = []
    with httpx.Client(follow_redirects=True, timeout=TIMEOUT) as client, ThreadPoolExecutor(AT_ONCE) as threads:
        for number, problem in enumerate(threads.map(lambda each: _fetch(client, *each), sorted(wanted, key=str)), 1):
            problems += [problem] if problem else []
            on_done(number, len(wanted))
    return problems


def _fetch(client: httpx.Client, target: Path, file: Download) -> str | None:
    partial = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _download(client, file.url, partial)
        partial.replace(target)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        partial.unlink(missing_ok=True)
        return f"{file.url} could not be downloaded ({str(error).splitlines()[0] if str(error) else 'no answer'})."
    return None


def _passing(error: BaseException) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _PASSING
    return isinstance(error, httpx.TransportError)


@tenacity.retry(
    retry=tenacity.retry_if_exception(_passing),
    stop=tenacity.stop_after_attempt(ATTEMPTS),
    wait=tenacity.wait_random_exponential(multiplier=0.5, max=20),
    reraise=True,
)
def _download(client: httpx.Client, url: str, target: Path) -> None:
    with client.stream("GET", url) as response, target.open("wb") as file:
        response.raise_for_status()
        for part in response.iter_bytes():
            file.write(part)
