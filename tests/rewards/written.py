"""Samples of a policy that writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmgrpo.reward import Reward
from mmgrpo.samples import ToolResult, Turn
from mmgrpo.types import Prompt, Sample, Score


def wrote(text: str | None, answer: Any = None, *, tokens: Sequence[int] | None = None, **columns: Any) -> Sample:
    """A sample with this text, whose row has the reference in column ``answer`` unless it is None."""
    columns_of_answer = {} if answer is None else {"answer": answer}
    return Sample(Prompt("q", columns=columns_of_answer | columns), group=0, member=0, text=text, tokens=tokens)


def conversation(
    columns: Mapping[str, Any], turns: Sequence[str], results: Sequence[Sequence[ToolResult]] = ()
) -> Sample:
    """A sample with turns, of which the environment answers the first ones with results of calls."""
    replies = [Turn(text="result", results=results_of_turn) for results_of_turn in results]
    starts = list(range(len(turns)))
    return Sample(
        Prompt("q", columns=columns),
        0,
        0,
        text="".join(turns),
        turn_texts=list(turns),
        turn_starts=starts,
        turn_ends=[start + 1 for start in starts],
        turn_rewards=[None] * len(turns),
        turn_keys=[None] * len(turns),
        turn_replies=[*replies, *([Turn(done=True)] * (len(turns) - len(replies)))],
    )


def score_of(reward: Reward, text: str | None, answer: Any = None) -> Any:
    """What the reward says of one text, without its explanation."""
    return scores_of(reward, [wrote(text, answer)])[0]


def scores_of(reward: Reward, samples: Sequence[Sample]) -> list[float | None]:
    """What the reward says of samples, without its explanations."""
    return [None if score is None else float(score) for score in reward(samples)]


def explained(reward: Reward, sample: Sample) -> dict[str, Any]:
    """The explanation of the reward for one sample."""
    (score,) = reward([sample])
    assert isinstance(score, Score)
    return dict(score.explanation)
