"""VSPO, arXiv:2512.07478.

Groups of equal rewards are replaced by further members of prompts that are chosen by their task value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from mmgrpo.maths.seeds import derive_seed
from mmgrpo.maths.strategies import STRATEGIES, Request, Round, Setting, informative, second_round, trained
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _of_differing_rewards(rounds: Sequence[Round], setting: Setting) -> Sequence[Tensor]:
    differing = torch.tensor(informative(rounds[:1]), dtype=torch.long)
    return [trained(round_) & torch.isin(round_.prompt_B, differing) for round_ in rounds]


@STRATEGIES.register
@second_round(keep=_of_differing_rewards)
def replace_by_task_value(first: Round, setting: Setting) -> Sequence[Request]:
    """Groups of equal rewards are left out; as many groups of further members go to prompts chosen by their value.

    The value of a prompt is (R - mean) std of its first members' rewards, R the highest reward of the round. For
    each group that is left out one prompt is chosen, with replacement, with a probability in proportion to its
    value; it gets ``rollout.group_size`` further members each time, which are compared with its other members as one
    group. A step without a value above 0 has no second round.

    Units: the value in those of the reward, squared.
    Source: VSPO, arXiv:2512.07478, the task value. Deviation: the paper's smoothing of the advantages of repeated
        prompts is left out, as its formula was not found.
    """
    differing = informative([first])
    num_replaced = setting.num_prompts - len(differing)
    values = task_values(first) if differing and num_replaced else {}
    if not any(values.values()):
        return ()
    random = Random(derive_seed(setting.seed, num_replaced))
    chosen = Counter(random.choices(list(values), list(values.values()), k=num_replaced))
    size = setting.group_size
    return tuple(
        Request(prompt=prompt, members=tuple(range(size, size * (1 + times))))
        for prompt, times in sorted(chosen.items())
    )


def task_values(round_: Round) -> dict[int, float]:
    """(R - mean) std of the rewards of each prompt that has any, R the highest reward of the round; std is of all.

    Source: VSPO, arXiv:2512.07478.
    """
    rewards = {prompt: round_.rewards_of(prompt) for prompt in sorted(round_.rewards())}
    highest = max(float(reward_G.max()) for reward_G in rewards.values())
    return {
        prompt: (highest - float(reward_G.mean())) * float(reward_G.std(correction=0))
        for prompt, reward_G in rewards.items()
    }
