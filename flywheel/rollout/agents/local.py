"""The local engine: many conversations decoded together, with a KV cache that lives as long as the episode.

Sessions hand in an observation and wait. When every open session waits (or `max_wait` seconds have passed), one *wave*
runs: the new prompt ids of all waiting sessions are prefilled in one padded batch on top of their caches, then tokens
are decoded together until each answer ends. Each session draws from its own random stream, so a sample does not depend
on who else was in the batch, up to float rounding.

Shapes: B sessions of a wave, T new tokens (padded), S cache length, H heads, K head width, L layers, V vocabulary.
"""

import asyncio
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flywheel.chat import Chat, Prompt
from flywheel.errors import AgentError
from flywheel.modeling.features import FeatureCache
from flywheel.modeling.logits import log_policy
from flywheel.modeling.positions import rope_positions
from flywheel.modeling.qwen import embed, hidden_states, use_standard_attention
from flywheel.rollout.agents.base import Completion
from flywheel.rollout.agents.conversation import Conversation
from flywheel.rollout.agents.wave import WaveCache, inverse_transform, nucleus, widths_alike
from flywheel.types import Observation, PolicyRef, Sampling, Task


@dataclass(slots=True)
class _Request:
    """One session's part in a wave."""

    session: "LocalSession"
    prompt: Prompt
    future: "asyncio.Future[Completion]"
    pending: tuple[int, ...] = ()
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    uniforms: np.ndarray = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True, slots=True)
class _Row:
    """What a session adds to its cache: ids with image tokens expanded (T,), positions (3, T), the position after."""

    ids: np.ndarray
    positions: np.ndarray
    after: int


class LocalSession:
    """One conversation; `unseen` are ids that were sampled but whose keys are not in the cache yet."""

    def __init__(self, engine: "LocalAgent", task: Task, sampling: Sampling) -> None:
        self.engine, self.sampling = engine, sampling
        self.random = np.random.default_rng(sampling.seed)
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.length = 0
        self.position = 0
        self.unseen: list[int] = []
        self._conversation = Conversation(engine.chat, task)

    async def act(self, observation: Observation) -> Completion:
        """Answer the newest observation."""
        prompt = self._conversation.prompt(observation)
        if self._conversation.begun_anew:  # and then no cached key holds
            self.keys = self.values = None
            self.length = self.position = 0
            self.unseen = []
        completion = await self.engine.complete(self, prompt)
        self._conversation.answered(completion.completion_ids)
        return completion

    async def close(self) -> None:
        self.keys = self.values = None
        self.engine.forget(self)


class LocalAgent:
    """A policy held in this process.

    Args:
        model: a prepared `Qwen3VLForConditionalGeneration` in evaluation mode.
        chat: words and pixels.
        max_wait: seconds that a wave waits for sessions whose environment is still busy.
    """

    def __init__(self, model: Any, chat: Chat, policy: PolicyRef, *, max_wait: float = 0.02) -> None:
        self.model, self.chat, self.policy = model, chat, policy
        use_standard_attention(model)
        self._look = FeatureCache(model, chat)
        self._max_wait = max_wait
        self._sessions: set[LocalSession] = set()
        self._waiting: list[_Request] = []
        self._wake = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None
        self._drawn = (1.0, 1.0)
        self._thread = ThreadPoolExecutor(1, "engine")
        self.tokens = 0

    async def open(self, task: Task, sampling: Sampling) -> LocalSession:
        drawn = (sampling.temperature, sampling.top_p)
        if self._sessions and drawn != self._drawn:
            raise AgentError(f"Sessions of one engine share temperature and top_p; {drawn} meets {self._drawn}.")
        self._drawn = drawn
        session = LocalSession(self, task, sampling)
        self._sessions.add(session)
        return session

    def forget(self, session: LocalSession) -> None:
        self._sessions.discard(session)
        self._wake.set()

    async def complete(self, session: LocalSession, prompt: Prompt) -> Completion:
        """Join the next wave. Raises `AgentError` when the engine has failed."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        request = _Request(session, prompt, future, pending=prompt.ids)
        self._waiting.append(request)
        if self._driver is None:
            self._wake = asyncio.Event()
            self._driver = asyncio.create_task(self._drive())
        self._wake.set()
        return await request.future

    async def _drive(self) -> None:
        """Wave after wave while anybody waits; gone when nobody does, and started again on demand."""
        try:
            while self._waiting:
                await self._gather()
                await self._answer()
                # The sessions that just got an answer act on it before the next wave is put together.
                await asyncio.sleep(0)
        finally:
            self._driver = None

    async def _answer(self) -> None:
        """Run one wave of those who still wait; a failure reaches every one of them."""
        wave = [request for request in self._waiting if not request.future.done()]
        self._waiting = []
        if not wave:
            return
        failure: Exception
        try:
            completions = await asyncio.get_running_loop().run_in_executor(self._thread, self._run_wave, wave)
        except RuntimeError as error:  # out of memory and the like: torch's own class
            failure = AgentError(f"The local engine failed: {error}")
        except Exception as error:  # a bug: whoever waits raises it, which stops the run
            failure = error
        else:
            for request, completion in zip(wave, completions, strict=True):
                if not request.future.done():
                    request.future.set_result(completion)
            return
        for request in wave:
            if not request.future.done():
                request.future.set_exception(failure)

    async def _gather(self) -> None:
        """Wait for sessions that are busy. Those that can go on at once do so first: publishing what has ended may take
        longer than `max_wait`, and must not send the others off in a wave of their own."""
        ready = -1
        while ready < len(self._waiting) < len(self._sessions):
            ready = len(self._waiting)
            await asyncio.sleep(0)
        deadline = time.monotonic() + self._max_wait
        while len(self._waiting) < len(self._sessions):
            self._wake.clear()
            left = deadline - time.monotonic()
            try:
                await asyncio.wait_for(self._wake.wait(), max(left, 0.0))
            except TimeoutError:
                return

    # --- the wave, in the engine's own thread ------------------------------------------------------------

    @torch.inference_mode()
    def _run_wave(self, wave: list[_Request]) -> list[Completion]:
        started = time.perf_counter()
        for request in wave:
            request.uniforms = request.session.random.random(request.session.sampling.max_tokens)
        cache, hidden_BD = self._prefill(wave)
        self._decode(wave, cache, hidden_BD)
        seconds = (time.perf_counter() - started) / len(wave)
        self.tokens += sum(len(request.ids) for request in wave)
        return [self._completion(request, seconds) for request in wave]

    def _prefill(self, wave: list[_Request]) -> tuple[WaveCache, Tensor]:
        """Run the new prompt ids on top of each session's cache; hidden state of each last id, (B, D).

        Sorts the wave by width, so that one long prompt does not pad all others.
        """
        self._prefill_shared([request for request in wave if request.session.length == 0])
        rows = [self._row(request) for request in wave]
        order = sorted(range(len(wave)), key=lambda b: len(rows[b].ids))
        wave[:], rows = [wave[b] for b in order], [rows[b] for b in order]
        longest = max(request.session.length for request in wave)
        answer = max(request.session.sampling.max_tokens for request in wave)
        cache = self._load_cache(wave, longest + len(rows[-1].ids) + answer)
        hidden = [self._prefill_rows(cache, wave, rows, part) for part in widths_alike([len(row.ids) for row in rows])]
        for request, row in zip(wave, rows, strict=True):
            request.session.length += len(row.ids)
            request.session.position = row.after
            request.session.unseen = []
        return cache, torch.cat(hidden)

    def _row(self, request: _Request) -> _Row:
        session, grids = request.session, [grid for _, grid in request.prompt.pictures]
        ids = self.chat.expand([*session.unseen, *request.pending], grids)
        merge = self.chat.processor.image_processor.merge_size
        positions, after = rope_positions(ids, grids, image_id=self.chat.image_id, merge=merge, start=session.position)
        return _Row(ids, positions, after)

    def _prefill_rows(self, cache: WaveCache, wave: list[_Request], rows: list[_Row], part: slice) -> Tensor:
        """Some neighbouring rows of a wave, padded to the widest of them; hidden state of each last id."""
        requests, chosen = wave[part], rows[part]
        ids_BT = np.full((len(chosen), len(chosen[-1].ids)), self.chat.end_id, np.int64)
        position_3BT = np.zeros((3, *ids_BT.shape), np.int64)
        for b, row in enumerate(chosen):
            ids_BT[b, : len(row.ids)] = row.ids
            position_3BT[:, b, : len(row.ids)] = row.positions
        features = self._look([image for request in requests for image, _ in request.prompt.pictures])
        starts = torch.tensor([request.session.length for request in requests])
        view = WaveCache(cache.keys[:, part], cache.values[:, part])
        hidden = self._forward(view, self._tensor(ids_BT), features, self._tensor(position_3BT), starts)
        return hidden[torch.arange(len(chosen)), torch.tensor([len(row.ids) - 1 for row in chosen])]

    def _prefill_shared(self, fresh: list[_Request]) -> None:
        """The instructions that begin every conversation, run once for all sessions that begin in this wave.

        They are half of a first prompt, and the widest rows set the padding of all others.
        """
        if len(fresh) < 2:
            return
        shared = [alike[0] for alike in itertools.takewhile(_alike, zip(*(r.prompt.ids for r in fresh), strict=False))]
        # One id at least stays behind for every session: its hidden state is what the answer is drawn from.
        length = min(len(shared), *(len(request.prompt.ids) - 1 for request in fresh))
        if self.chat.image_id in shared:
            length = min(length, shared.index(self.chat.image_id))
        if not length:
            return
        cache = WaveCache.empty(self.model, 1, length)
        positions_31T = self._tensor(np.broadcast_to(np.arange(length), (3, 1, length)))
        self._forward(
            cache, self._tensor(np.array([shared[:length]])), None, positions_31T, torch.zeros(1, dtype=torch.long)
        )
        for request in fresh:
            session = request.session
            session.keys, session.values = cache.keys[:, 0], cache.values[:, 0]
            session.length = session.position = length
            request.pending = request.prompt.ids[length:]

    def _decode(self, wave: list[_Request], cache: WaveCache, hidden_BD: Tensor) -> None:
        """Sample until every answer has ended; finished rows leave the batch once they are a third of it."""
        rows, alive = list(range(len(wave))), [True] * len(wave)
        for step in itertools.count(1):
            picks = self._sample([wave[i] for i in rows], hidden_BD, step - 1)
            for row, (token, logprob) in enumerate(picks):
                if alive[row] and self._append(wave[rows[row]], token, logprob, step):
                    self._store_cache(wave[rows[row]].session, cache, row)
                    alive[row] = False
            if not any(alive):
                return
            if sum(alive) <= 0.67 * len(rows):
                keep = [row for row, going in enumerate(alive) if going]
                cache, rows, alive = cache.rows(torch.tensor(keep)), [rows[row] for row in keep], [True] * len(keep)
            sessions = [wave[i].session for i in rows]
            ids_B1 = self._tensor(np.array([[wave[i].ids[-1]] for i in rows]))
            starts_B = torch.tensor([session.length for session in sessions])
            position_3B1 = self._tensor(np.array([[session.position] for session in sessions])).expand(3, -1, -1)
            hidden_BD = self._forward(cache, ids_B1, None, position_3B1, starts_B)[:, 0]
            for row, session in enumerate(sessions):
                if alive[row]:
                    session.length += 1
                    session.position += 1

    def _forward(
        self, cache: WaveCache, ids_BT: Tensor, features: Any, position_3BT: Tensor, starts_B: Tensor
    ) -> Tensor:
        width = ids_BT.shape[1]
        cache.write_BT = starts_B[:, None] + torch.arange(width)
        used = int(cache.write_BT.max()) + 1
        view = WaveCache(cache.keys[:, :, :, :used], cache.values[:, :, :, :used])
        view.write_BT = cache.write_BT
        mask_B1TS = (torch.arange(used) <= cache.write_BT[..., None])[:, None].to(ids_BT.device)
        embeds, places = embed(self.model, ids_BT, features)
        return hidden_states(
            self.model, embeds, places, features, position_3BT, past_key_values=view, attention_mask=mask_B1TS
        )

    def _sample(self, requests: list[_Request], hidden_BD: Tensor, step: int) -> list[tuple[int, float]]:
        """One id and its logprob for each row, by inverse transform of the session's own uniforms.

        The logprob is that of the full distribution, also where `top_p` cuts: it is what a trainer can compute.
        """
        sampling = requests[0].session.sampling
        logp_BV = log_policy(self.model.lm_head(hidden_BD), sampling.temperature, self.chat.forbidden_ids)
        if sampling.temperature == 0:
            ids_B = logp_BV.argmax(-1)
        else:
            uniforms = torch.tensor([r.uniforms[min(step, len(r.uniforms) - 1)] for r in requests])
            ids_B = inverse_transform(nucleus(logp_BV, sampling.top_p), uniforms.to(logp_BV))
        chosen = logp_BV.gather(1, ids_B[:, None])[:, 0]
        return list(zip(ids_B.tolist(), chosen.tolist(), strict=True))

    def _append(self, request: _Request, token: int, logprob: float, step: int) -> bool:
        """Take one sampled id; True when the answer has ended."""
        request.ids.append(token)
        request.logprobs.append(logprob)
        if token != self.chat.end_id and step < request.session.sampling.max_tokens:
            return False
        request.session.unseen = [token]
        return True

    def _load_cache(self, wave: list[_Request], room: int) -> WaveCache:
        cache = WaveCache.empty(self.model, len(wave), room)
        for b, request in enumerate(wave):
            session = request.session
            if session.keys is not None and session.values is not None:
                cache.keys[:, b, :, : session.length] = session.keys
                cache.values[:, b, :, : session.length] = session.values
        return cache

    def _store_cache(self, session: LocalSession, cache: WaveCache, row: int) -> None:
        session.keys = cache.keys[:, row, :, : session.length].clone()
        session.values = cache.values[:, row, :, : session.length].clone()

    def _completion(self, request: _Request, seconds: float) -> Completion:
        return Completion(
            text=self.chat.decode(request.ids),
            prompt_ids=request.prompt.ids,
            completion_ids=tuple(request.ids),
            logprobs=tuple(request.logprobs),
            image_grid=request.prompt.grid,
            finish_reason="stop" if request.ids[-1] == self.chat.end_id else "length",
            seconds=seconds,
        )

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.model.device)


def _alike(ids: tuple[int, ...]) -> bool:
    return len(set(ids)) == 1
