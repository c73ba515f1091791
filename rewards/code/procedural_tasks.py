"""Rewards of procedurally generated tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from mmgrpo.system.extras import required
from mmgrpo.system.sandbox import PYTHON, START_S, Program, SandboxLimits, Session
from mmgrpo.types import Sample, Score

from ..parsing.explanations import comparison
from ..parsing.extraction import Extract, extract_answer, require_extract

WORKER = Path(__file__).with_name("procedural_worker.py")

TASK_KEYS = {"dataset", "size", "seed", "config", "index"}


@final
class ReasoningGym:
    """Reward: score of the answer by the verifier of its task in reasoning-gym.

    Prompts come from ``prompts: "reasoning_gym:DATASET?size=500&seed=0"``. Verifiers run in the sandbox, because some
    evaluate the answer. No score without a task in the column ``reasoning_gym``.

    Settings: ``extract`` as in ``exact_match``; ``time_s``, limit per answer: a verifier that takes longer gives 0;
    ``memory_mb``.
    Range: 0 to 1; some verifiers give 0.01 to 0.1 for answers in the right form.   Units: seconds, MiB.
    Source: reasoning-gym (Stojanovski et al. 2025, arXiv:2505.24760).
    Traps: the partial scores of verifiers reward the form of an answer.
    """

    deterministic = True

    def __init__(self, extract: Extract = "tag", time_s: float = 10.0, memory_mb: int = 4096) -> None:
        required("reasoning_gym", "the reward reasoning_gym")
        self.column = "reasoning_gym"
        self._extract: Extract = require_extract("ReasoningGym.extract", extract)
        self._program = Program(
            command=(*PYTHON, WORKER.name),
            files={WORKER.name: WORKER.read_text()},
            limits=SandboxLimits(time_s=time_s, memory_mb=memory_mb),
        )
        self._session: Session | None = None

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        try:
            return [self._score(sample) for sample in samples]
        finally:
            self._close()

    def _score(self, sample: Sample) -> Score | None:
        task = sample.prompt.columns.get(self.column)
        if sample.text is None or not isinstance(task, Mapping) or set(task) != TASK_KEYS:
            return None
        reference = sample.prompt.columns.get("answer", "")
        answer = extract_answer(sample.text, self._extract)
        if answer is None:
            return Score(0.0, comparison(None, reference, "no answer"))
        value, reason = self._verified({**task, "answer": answer})
        return None if value is None else Score(value, comparison(answer, reference, reason))

    def _verified(self, request: Mapping[str, Any]) -> tuple[float | None, str | None]:
        """The score of an answer, and a reason."""
        is_first = self._session is None
        session = self._session = self._session or Session(self._program)
        reply, ending = session.ask(json.dumps(request), time_s=START_S if is_first else None)
        if ending is not None:
            self._session = None
            return 0.0, "the verifier takes too long or too much memory"
        result = json.loads(reply)
        return result["score"], result.get("error")

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
