"""CoMAS, arXiv:2510.08529.

Solutions are evaluated, and a score of both is the reward of the solution and, reversed, of its evaluation.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import final

from mmgrpo.types import Sample

SCORE = re.compile(r"<score>\s*([123])\s*</score>")

Identity = tuple[int, int]


@final
class Interaction:
    """Reward of solutions and their evaluations by scores that the policy writes, and of the scores by their form.

    A score s from 1 to 3, the last one between ``<score>`` tags, gives the solution (s - 1) / 2, its evaluation
    1 - (s - 1) / 2 and itself 0; a text without one gives 0, 0 and itself -1. Of several scores of one row the mean
    counts. None for rows that no score is sampled after.

    Settings: ``scored``: the prompt templates of scores, which are sampled after a solution and its evaluation.
    Range: -1 to 1.   Source: CoMAS, arXiv:2510.08529, and its code, marti/verifiers/comas_reward.py.
    """

    def __init__(self, scored: Sequence[str] = ("scored",)) -> None:
        self._scored = frozenset(scored)

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        values: defaultdict[Identity, list[float]] = defaultdict(list)
        for sample in samples:
            if sample.prompt_template not in self._scored or len(sample.after) != 2:
                continue
            marks = SCORE.findall(sample.text or "")
            solution, evaluation = sample.after
            share = (int(marks[-1]) - 1) / 2 if marks else None
            values[solution].append(0.0 if share is None else share)
            values[evaluation].append(0.0 if share is None else 1.0 - share)
            values[sample.identity].append(0.0 if marks else -1.0)
        return [fmean(values[sample.identity]) if sample.identity in values else None for sample in samples]
