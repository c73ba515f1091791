"""The environments of a rollout, answered side by side: one thread for each, a limit on calls at a time and on their
duration.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, final

from mmgrpo.environment import Environment, Turn
from mmgrpo.tool_calls import AssistantMessage
from mmgrpo.types import Prompt

from .guarded_environment import GuardedEnvironment

logger = logging.getLogger(__name__)

MAX_CLOSE_S = 10.0
"""Seconds that all ``close`` calls of a rollout may take together."""

MAX_INTERRUPT_S = 1.0
"""Seconds that ``Environment.interrupted`` may take."""


@final
class _Call:
    """One call of an environment: its result, or the error of the run that it raised."""

    def __init__(self, method: str, function: Callable[[], Any]) -> None:
        self.method = method
        self.function = function
        self.started_s: float | None = None
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None


@final
class EnvironmentPool:
    """One environment per row, with one thread for all of its calls; calls begin in the order in which
    they are submitted, and at most ``workers`` run at a time.

    A call that takes longer than ``timeout_s`` is abandoned with its thread, and the next call begins. The answer is
    that of ``Environment.interrupted``, and the conversation continues on a new thread; without one, the conversation
    ends as after an error (``GuardedEnvironment``).

    Attributes:
        environments: one per row.
    """

    def __init__(
        self, make: Callable[[], Environment], num_rows: int, *, workers: int, timeout_s: float | None
    ) -> None:
        """Makes the environments side by side.

        Args:
            make: returns a new environment; called on the thread of each row, in any order.
            num_rows: number of rows.
            workers: maximum number of calls at a time.
            timeout_s: maximum duration of a call in seconds; None: unlimited.
        """
        self._condition = threading.Condition()
        self._waiting: deque[tuple[int, _Call]] = deque()
        self._running: dict[int, _Call] = {}
        self._queues: list[SimpleQueue[_Call | None]] = []
        self._calls: dict[int, _Call] = {}
        self._awaited: set[int] = set()  # rows whose calls are awaited together
        self._abandoned: set[int] = set()
        self._workers, self._timeout_s = workers, timeout_s
        self.environments = [GuardedEnvironment() for _ in range(num_rows)]
        for row, environment in enumerate(self.environments):
            self._queues.append(SimpleQueue())
            self._submit(row, "__init__", lambda environment=environment: environment.make(make))
        for row, queue in enumerate(self._queues):  # a thread finds its first call
            self._start_thread(row, queue)
        try:
            self._results(range(num_rows))
        except BaseException:  # an error of the run
            self.close()
            raise

    def __enter__(self) -> EnvironmentPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def reset(self, prompts: Sequence[Prompt]) -> list[Turn]:
        """The opening turn of each row.

        Args:
            prompts: the prompt of each row.

        Returns:
            The turns; an empty one if the environment failed.
        """
        for row, (environment, prompt) in enumerate(zip(self.environments, prompts, strict=True)):
            self._submit(row, "reset", lambda environment=environment, prompt=prompt: environment.reset(prompt))
        openings = self._results(range(len(prompts)))
        return [Turn() if opening is None else opening for opening in openings]

    def submit(self, row: int, message: AssistantMessage | str) -> None:
        """Begins to answer a turn of the policy.

        Args:
            row: the row.
            message: its last turn.
        """
        self._submit(row, "step", lambda: self.environments[row].step(message))

    def final_rewards(self, rows: Sequence[int]) -> dict[int, float | None]:
        """The rewards of conversations that their environments did not end.

        Args:
            rows: the rows.

        Returns:
            The reward of each row whose environment may have one.
        """
        rewarded = [row for row in rows if self.environments[row].has_final_reward]
        for row in rewarded:
            self._submit(row, "final_reward", self.environments[row].final_reward)
        turns = zip(rewarded, self._results(rewarded), strict=True)
        return {row: None if turn is None else turn.reward for row, turn in turns}

    def answered(self) -> set[int]:
        """The rows whose last answer is there, or its time is over: ``reply`` returns at once."""
        with self._condition:
            self._expire()
            return {row for row, call in self._calls.items() if call.is_done}

    def wait_for(self, is_enough: Callable[[set[int]], bool]) -> None:
        """Waits for answers.

        Args:
            is_enough: whether these rows of ``answered`` end the wait.
        """
        with self._condition:
            while not is_enough(self.answered()):
                self._condition.wait(self._seconds_to_expiry())

    def reply(self, row: int) -> Turn:
        """Waits for the answer to the submitted turn of a row.

        Args:
            row: the row.

        Returns:
            The answer; a final turn if the environment failed or took too long.
        """
        (reply,) = self._results([row])
        return Turn(done=True) if reply is None else reply

    def close(self) -> None:
        """Closes every environment on its thread; of an abandoned call, on another thread. Ends the threads."""
        with self._condition:
            self._waiting.clear()  # no call begins after close
        closing = []
        for row, (environment, queue) in enumerate(zip(self.environments, self._queues, strict=True)):
            if row in self._abandoned:
                thread = threading.Thread(target=environment.close, name=f"close {row}", daemon=True)
                thread.start()
                closing.append(thread.join)
            else:
                call = _Call("close", environment.close)
                queue.put(call)
                closing.append(partial(self._wait_for, call))
            queue.put(None)
        end_s = time.monotonic() + MAX_CLOSE_S
        for wait in closing:
            wait(max(end_s - time.monotonic(), 0.0))
        if time.monotonic() >= end_s:
            logger.warning("environments were not closed within %g s; their threads are abandoned", MAX_CLOSE_S)

    def _submit(self, row: int, method: str, function: Callable[[], Any]) -> None:
        call = _Call(method, function)
        with self._condition:
            self._calls[row] = call
            if row in self._abandoned:
                call.is_done = True
                return
            self._waiting.append((row, call))
            self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._workers:
            row, call = self._waiting.popleft()
            call.started_s = time.monotonic()
            self._running[row] = call
            self._queues[row].put(call)

    def _start_thread(self, row: int, queue: SimpleQueue[_Call | None]) -> None:
        threading.Thread(target=self._serve, args=(row, queue), name=f"environment {row}", daemon=True).start()

    def _serve(self, row: int, queue: SimpleQueue[_Call | None]) -> None:
        """Runs the calls of one row."""
        while (call := queue.get()) is not None:
            try:
                result, error = call.function(), None
            except BaseException as raised:  # an error of the run, which the waiting thread raises
                result, error = None, raised
            with self._condition:
                if self._running.get(row) is call:
                    del self._running[row]
                if not (is_abandoned := call.is_done):
                    call.result, call.error = result, error
                    self._finish(row, call)
                self._start_waiting()
                if not self._awaited:
                    self._condition.notify_all()
            if is_abandoned:
                return

    def _finish(self, row: int, call: _Call) -> None:
        call.is_done = True
        self._awaited.discard(row)

    def _results(self, rows: Sequence[int]) -> list[Any]:
        """Waits for the calls of rows; the last of them wakes this thread. Raises the error of the run of the first."""
        calls = [self._calls[row] for row in rows]
        with self._condition:
            self._awaited = {row for row, call in zip(rows, calls, strict=True) if not call.is_done}
            try:
                while self._awaited:
                    self._expire()
                    if self._awaited:
                        self._condition.wait(self._seconds_to_expiry())
            finally:
                self._awaited = set()
        for call in calls:
            if call.error is not None:
                raise call.error
        return [call.result for call in calls]

    def _wait_for(self, call: _Call, timeout_s: float) -> None:
        self._wait(lambda: call.is_done, timeout_s)

    def _wait(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        with self._condition:
            self._condition.wait_for(is_done, timeout_s)

    def _seconds_to_expiry(self) -> float | None:
        if self._timeout_s is None or not self._running:
            return None
        ends = [call.started_s + self._timeout_s for call in self._running.values() if call.started_s is not None]
        return max(min(ends) - time.monotonic(), 0.001)

    def _expire(self) -> None:
        """Gives up on the calls whose time is over."""
        if self._timeout_s is None:
            return
        now_s = time.monotonic()
        for row, call in list(self._running.items()):
            if call.started_s is not None and now_s - call.started_s > self._timeout_s:
                del self._running[row]
                limit = TimeoutError(f"it took longer than rollout.environment_timeout_s={self._timeout_s:g}")
                reply = self._interrupt(row, self._timeout_s) if call.method == "step" else None
                if reply is not None:
                    call.result, self._queues[row] = reply, SimpleQueue()
                    self._start_thread(row, self._queues[row])
                else:
                    self._abandoned.add(row)
                    self.environments[row].fail(call.method, limit)
                self._finish(row, call)
        self._start_waiting()

    def _interrupt(self, row: int, limit_s: float) -> Turn | None:
        """The answer in place of one that took too long; None if the environment has none, or none in time."""
        replies: SimpleQueue[Turn | None] = SimpleQueue()
        interrupt = self.environments[row].interrupt
        threading.Thread(target=lambda: replies.put(interrupt(limit_s)), name=f"interrupt {row}", daemon=True).start()
        try:
            return replies.get(timeout=MAX_INTERRUPT_S)
        except Empty:
            return None
