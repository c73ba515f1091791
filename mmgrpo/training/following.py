"""A task that is after another: it is shown what the other has drawn, and the other is told what came of it.

Axes: N rows of the whole job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, final

from mmgrpo.config import TaskConfig
from mmgrpo.data.history import Context, History
from mmgrpo.data.stream import StepPrompts
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies.downstream import FOLLOWED, following
from mmgrpo.policy import Policy
from mmgrpo.reward import CrossTaskReward
from mmgrpo.scoring import NamedReward
from mmgrpo.training.ema import Average
from mmgrpo.training.gather import Followed
from mmgrpo.training.phases import Gathered, Judged
from mmgrpo.types import Plan, Prompt


@final
class Behind:
    """How a task is after another.

    Attributes:
        contexts: how it is shown a sample of the other, by the name that its requests have for it.
    """

    def __init__(self, leader: Policy, config: TaskConfig, template: Context, average: Average | None = None) -> None:
        """Links the two tasks.

        Args:
            leader: the policy whose samples are shown.
            config: of the task that is after it.
            template: shows a sample of the leader in place of the prompt.
            average: of its weights, if one is kept.
        """
        self._leader = leader
        self._average = average
        self._config = config
        self.contexts = {FOLLOWED: template}

    def followed(self, gathered: Mapping[str, Gathered], job: Job) -> tuple[StepPrompts, Followed]:
        """The other's prompts of this step, and what it has drawn of them. A collective."""
        leader = gathered[str(self._config.after)]
        samples = leader.experience.samples
        parts = job.gather([sample.identity for sample in samples])
        owner = {group: rank for rank, part in enumerate(parts) for group, _ in part}
        identities = [identity for part in parts for identity in part]
        planner = following(identities, compare=self._config.compare)
        shown = leader.experience
        return leader.prompts, Followed(rollout=shown.rollout, planner=planner, owner=owner, root_of=shown.root_of)

    def show(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Held-out prompts as the other would have them shown, without noise; as they are where it shows nothing."""
        plan = Plan(stochastic=(), prompt_ids=tuple(range(len(prompts))))
        with self._average.applied() if self._average else nullcontext():
            written = self._leader.rollout(prompts, group_size=1, seed=0, plan=plan).samples
        context = self.contexts[FOLLOWED]
        shown = {one.group: context(prompts[one.group], 0, History(samples=[one])) for one in written}
        return [shown[group] or prompt for group, prompt in enumerate(prompts)]


@contextmanager
def told(rewards: Sequence[NamedReward], after: Mapping[str, Judged]) -> Iterator[None]:
    """Within it the rewards that go by another task know what came of the samples there."""
    hearing = [reward.function for reward in rewards if isinstance(reward.function, CrossTaskReward)]
    for reward in hearing:
        reward.hear(outcomes(after[reward.task], reward.reward))
    try:
        yield
    finally:
        for reward in hearing:
            reward.hear({})


def outcomes(judged: Judged, reward: str | None) -> dict[tuple[int, int], float]:
    """What came of each sample of the task before, by its group and member: the mean over the rows drawn after it.

    Args:
        judged: the rows.
        reward: whose values; None: what their rewards come to.

    Returns:
        The means; none where no reward applied.
    """
    scores = judged.verdict.scores
    if reward is None:
        value_N, valid_N = judged.batch.credit.total_B, judged.batch.credit.scored_B
    else:
        column = scores.names.index(reward)
        value_N, valid_N = scores.value_BR[:, column], scores.valid_BR[:, column]
    values: dict[tuple[int, int], list[float]] = {}
    for after, value, valid in zip(judged.after_N, value_N.tolist(), valid_N.tolist(), strict=True):
        for identity in after if valid else ():
            values.setdefault(identity, []).append(value)
    return {identity: sum(each) / len(each) for identity, each in values.items()}


def require_told(name: str, rewards: Sequence[Any], tasks: Mapping[str, Sequence[str]]) -> None:
    """Checks whom rewards want to hear of.

    Args:
        name: the task that has the rewards.
        rewards: by their functions.
        tasks: names of the rewards of each task that is after it.

    Raises:
        ConfigError: a reward goes by a task that is not after this one, or by a reward that is not there.
    """
    for reward in rewards:
        if not isinstance(reward, CrossTaskReward):
            continue
        if reward.task not in tasks:
            known = ", ".join(tasks) or "none"
            raise ConfigError(f"of_task: {reward.task!r} is no task after {name or 'this run'}; those are {known}")
        if reward.reward is not None and reward.reward not in tasks[reward.task]:
            known = ", ".join(tasks[reward.task])
            raise ConfigError(f"of_task: {reward.task} has no reward {reward.reward!r}; it has {known}")
