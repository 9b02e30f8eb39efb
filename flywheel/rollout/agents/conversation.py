"""One episode's conversation in tokens: what has been seen and said, and what the next observation adds."""

from flywheel.chat import Answer, Chat, Prompt
from flywheel.types import Observation, Task


class Conversation:
    """Observations and answers in turns; `begun_anew` says that the last prompt was cut to its window.

    What an engine has kept of the ids before that prompt is of no use then.
    """

    def __init__(self, chat: Chat, task: Task) -> None:
        self._chat, self._task = chat, task
        self._seen: list[Observation] = []
        self._said: list[Answer] = []
        self._start = 0
        self.begun_anew = False

    def prompt(self, observation: Observation) -> Prompt:
        """What the observation adds; where the window is cut, the conversation anew."""
        self._seen.append(observation)
        chat, start = self._chat, self._start
        if not self._said:
            return chat.first(self._task, observation)
        self._start = chat.words.window.start([int(seen.screenshot is not None) for seen in self._seen], start)
        self.begun_anew = self._start != start
        if self.begun_anew:
            return chat.again(self._task, self._seen[self._start :], self._said[self._start :])
        return chat.next(self._task, observation, cut=self._said[-1].cut)

    def answered(self, ids: tuple[int, ...]) -> None:
        """The answer to the last prompt, as it was sampled."""
        self._said.append(Answer(ids, cut=ids[-1] != self._chat.end_id))
