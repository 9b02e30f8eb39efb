"""A desktop on an env server, as an `Env`: leased for each episode, kept alive in the background, given back after it.

A request whose connection breaks is sent again: steps, set-ups and evaluations carry what makes a repetition harmless,
so nothing is executed twice. A server that stays away is an infrastructure failure of the episode, never a reward.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from flywheel.envs.base import Capabilities, ObserveOptions
from flywheel.envs.breaker import Breaker
from flywheel.envs.wire import (
    WireError,
    action_to_json,
    capabilities_from_json,
    decode_observation,
    decode_result,
    error_from_json,
    options_to_json,
    task_to_json,
)
from flywheel.errors import ConfigError, EnvError, EvaluatorError, InfrastructureError
from flywheel.types import Action, Observation, StepResult, Task

T = TypeVar("T")

RETRY_SECONDS = 5.0
"""A request is repeated for so long when the connection breaks."""
TTL_SECONDS = 60.0
"""A lease without a sign of its client ends after so long; heartbeats go out four times as often."""
COMMAND_SECONDS = 900.0
"""For one answer; the server's own deadlines are shorter."""


class Server:
    """One env server.

    Args:
        url: `http://host:port`; a token may stand in it as the password, `http://flywheel:TOKEN@host:port`.
        token: for every request, unless the URL has one.
        http: shared by all servers of a pool.
    """

    def __init__(self, url: str, token: str | None, http: httpx.AsyncClient) -> None:
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, ValueError) as error:
            raise ConfigError(f"'{url}' is no URL of an env server: {error}.") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ConfigError(f"'{url}' is no URL of an env server; write http://HOST:PORT.")
        token = parsed.password or token
        self.url = str(parsed.copy_with(username=None, password=None)).rstrip("/")
        self.breaker = Breaker()
        self.problem = f"The env server at {self.url} does not answer."
        self._http = http
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._capabilities: Capabilities | None = None

    async def capabilities(self) -> Capabilities:
        """What its desktops offer; asked once. Raises `InfrastructureError`, `ConfigError`."""
        if self._capabilities is None:
            answer = await self.send("GET", "/v1/capabilities", seconds=60.0)
            self._capabilities = _capabilities(_json(answer))
        return self._capabilities

    async def health(self) -> dict[str, Any]:
        """The answer of /v1/health. Raises `InfrastructureError`, `ConfigError`."""
        return _json(await self.send("GET", "/v1/health", seconds=10.0, retry=False))

    async def list(self, name: str) -> list[dict[str, Any]]:
        """The answer of /v1/`name`, `leases` or `desktops`. Raises `InfrastructureError`, `ConfigError`."""
        answer = await self.send("GET", f"/v1/{name}", seconds=10.0, retry=False)
        rows: list[dict[str, Any]] = answer.json()
        return rows

    async def view(self, desktop: int) -> str:
        """Address of a page, on the server's own loopback, that shows a leased desktop. Raises `EnvError`."""
        answer = await self.send("POST", f"/v1/desktops/{desktop}/view", json={}, seconds=120.0, retry=False)
        return str(_json(answer).get("url"))

    async def lease(self, task: Task, apps: frozenset[str], wait: float, client: str) -> "RemoteLease | None":
        """A desktop, or None when all are taken for `wait` seconds. Raises `EnvError`, `ConfigError`."""
        asked = {"ttl_s": TTL_SECONDS, "wait_s": wait, "client": client, "apps": sorted(apps)}
        # Not repeated when the answer is lost, lest a desktop be leased to nobody until its ttl is over.
        answer = await self.send(
            "POST",
            "/v1/leases",
            json={**asked, "platform": task.platform},
            seconds=wait + 60.0,
            retry=False,
            check=False,
        )
        if answer.status_code == 429:
            return None
        if answer.status_code == 503:
            self.problem = str(error_from_json(_json(answer)))
            self.breaker.rest(_retry_after(answer))
            return None
        grant = _json(_checked(answer))
        self._capabilities = _capabilities(grant.get("capabilities"))
        return RemoteLease(self, str(grant.get("lease")), str(grant.get("secret")), self._capabilities)

    async def send(
        self,
        method: str,
        path: str,
        *,
        json: Mapping[str, Any] | None = None,
        secret: str | None = None,
        seconds: float,
        retry: bool = True,
        check: bool = True,
    ) -> httpx.Response:
        """One request, repeated while the connection breaks. Raises what the server said, `InfrastructureError`."""
        headers = {**self._headers, **({"X-Lease-Secret": secret} if secret is not None else {})}
        attempts = AsyncRetrying(
            stop=stop_after_delay(RETRY_SECONDS if retry else 0.0),
            wait=wait_random_exponential(multiplier=0.1, max=1.0),
            retry=retry_if_exception_type(httpx.TransportError),
            reraise=True,
        )
        limits = httpx.Timeout(seconds, connect=5.0, pool=None)
        try:
            answer: httpx.Response = await attempts(self._once, method, path, headers, json, limits)
        except httpx.TransportError as error:
            self.breaker.failed()
            self._capabilities = None
            why = str(error).rstrip(".") or type(error).__name__
            self.problem = f"The env server at {self.url} does not answer: {why}."
            raise InfrastructureError(self.problem) from error
        self.breaker.worked()
        return _checked(answer) if check else answer

    async def _once(
        self, method: str, path: str, headers: dict[str, str], json: Any, limits: httpx.Timeout
    ) -> httpx.Response:
        answer = await self._http.request(method, self.url + path, json=json, headers=headers, timeout=limits)
        if answer.status_code in (502, 503, 504) and "json" not in answer.headers.get("content-type", ""):
            raise httpx.TransportError(f"a proxy before it said {answer.status_code}")
        return answer


class RemoteLease:
    """A desktop that is ours until `release`; heartbeats go out in the background."""

    def __init__(self, server: Server, id: str, secret: str, capabilities: Capabilities) -> None:
        self.server, self.capabilities = server, capabilities
        self._path, self._secret = f"/v1/leases/{id}", secret
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._heart = asyncio.create_task(self._beat())

    async def command(self, name: str, json: Mapping[str, Any]) -> httpx.Response:
        """The answer to one command. Raises what the server said, and `InfrastructureError` when the lease is lost."""
        path = f"{self._path}/{name}"
        sent = asyncio.create_task(
            self.server.send("POST", path, json=json, secret=self._secret, seconds=COMMAND_SECONDS)
        )
        events: list[asyncio.Future[Any]] = [sent, self._lost]
        try:
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            if not sent.done():
                raise InfrastructureError(self._lost.result())
            return sent.result()
        finally:
            sent.cancel()

    async def release(self) -> None:
        """Give the desktop back; a server that is gone is left alone. Safe to call twice."""
        if self._heart.cancelled() or self._heart.cancelling():
            return
        self._heart.cancel()
        with contextlib.suppress(EnvError):
            await self.server.send("DELETE", self._path, secret=self._secret, seconds=10.0, retry=False, check=False)

    async def _beat(self) -> None:
        heard = time.monotonic()
        while not self._lost.done():
            await asyncio.sleep(TTL_SECONDS / 4)
            try:
                await self.server.send(
                    "POST", f"{self._path}/heartbeat", json={}, secret=self._secret, seconds=10.0, retry=False
                )
                heard = time.monotonic()
            except (EnvError, ConfigError) as error:
                refused = not isinstance(error.__cause__, httpx.TransportError)
                if refused or time.monotonic() - heard > TTL_SECONDS:
                    self._lost.set_result(str(error))


class RemoteEnv:
    """The contract of `Env` over leases: each `reset` takes a fresh desktop, which is given back once it was judged.

    Args:
        open_lease: waits for a desktop that can play a task; `EnvPool.lease`.
        observe: what observations hold.
        on_close: awaited by `close`, for whatever was opened for this environment alone.
    """

    def __init__(
        self,
        open_lease: Callable[[Task], Awaitable[RemoteLease]],
        observe: ObserveOptions,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._open_lease, self._observe, self._on_close = open_lease, observe, on_close
        self._lease: RemoteLease | None = None
        self._capabilities: Capabilities | None = None
        self._steps = 0
        self._judged = self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        """Of the desktop that plays, or played last. Raises `InfrastructureError` before the first `reset`."""
        if self._capabilities is None:
            raise InfrastructureError("Which desktop it will be is known after reset; reset the environment first.")
        return self._capabilities

    async def reset(self, task: Task) -> Observation:
        """Raises `SetupError`, `InfrastructureError`."""
        self._refuse_closed()
        await self._release()
        self._lease = await self._open_lease(task)
        self._capabilities = self._lease.capabilities
        self._steps, self._judged = 0, False
        asked = {
            "task": task_to_json(task),
            "observe": options_to_json(self._observe),
            "request": secrets.token_hex(8),
        }
        return await self._run(self._began(self._lease, asked))

    async def step(self, action: Action) -> StepResult:
        """Raises `InfrastructureError`."""
        self._refuse_closed()
        if self._lease is None:
            raise InfrastructureError("The remote desktop has no running episode; reset it first.")
        result = await self._run(self._acted(self._lease, action))
        self._steps += 1
        return result

    async def evaluate(self) -> float:
        """Raises `EvaluatorError`, `InfrastructureError`. The desktop is given back."""
        self._refuse_closed()
        if self._lease is None and self._judged:
            raise EvaluatorError("The episode was judged already; an episode is judged once.")
        if self._lease is None:
            raise InfrastructureError("The remote desktop has no running episode to judge; reset it first.")
        reward = await self._run(self._rewarded(self._lease))
        self._judged = True
        await self._release()
        return reward

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                await self._release()
            finally:
                if self._on_close is not None:
                    await self._on_close()

    async def _began(self, lease: RemoteLease, asked: Mapping[str, Any]) -> Observation:
        return decode_observation((await lease.command("reset", asked)).content)

    async def _acted(self, lease: RemoteLease, action: Action) -> StepResult:
        asked = {"index": self._steps, "action": action_to_json(action)}
        return decode_result((await lease.command("step", asked)).content)

    async def _rewarded(self, lease: RemoteLease) -> float:
        reward = _json(await lease.command("evaluate", {})).get("reward")
        if not isinstance(reward, int | float) or isinstance(reward, bool):
            raise WireError("The env server answered an evaluation without a reward.")
        return float(reward)

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives; whatever it raises ends the lease, because an episode does not go on after it."""
        try:
            return await work
        except WireError as error:
            await self._release()
            raise InfrastructureError(f"The env server does not speak the protocol: {error}") from error
        except BaseException:
            await self._release()
            raise

    async def _release(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.release()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise InfrastructureError("The remote desktop is closed; open a new one.")


def _checked(answer: httpx.Response) -> httpx.Response:
    """The answer, unless it is an error: then what it says is raised."""
    if answer.is_success:
        return answer
    try:
        told = answer.json()
    except ValueError:
        told = answer.text
    error = error_from_json(told)
    if answer.status_code == 401:
        raise ConfigError(f"The env server at {answer.url.host}:{answer.url.port} refuses the token: {error}")
    raise error


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        value = answer.json()
    except ValueError as error:
        raise InfrastructureError(f"{answer.url} did not answer with JSON; is it an env server?") from error
    if not isinstance(value, dict):
        raise InfrastructureError(f"{answer.url} did not answer with an object; is it an env server?")
    return value


def _capabilities(value: Any) -> Capabilities:
    try:
        return capabilities_from_json(value)
    except WireError as error:
        raise InfrastructureError(f"The env server does not speak the protocol: {error}") from error


def _retry_after(answer: httpx.Response) -> float:
    try:
        return min(60.0, max(0.5, float(answer.headers.get("retry-after", "2"))))
    except ValueError:
        return 2.0
