"""AT-GRPO, arXiv:2510.11062.

Turn by turn, candidates from the state that the best candidate of the turn before led to are compared with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.group_stats import standardized_among
from mmgrpo.maths.strategies import STRATEGIES, Branch, Request, Round, Setting, strategy
from mmgrpo.maths.strategies.branch_points import turn_starts
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _check_follow_best(rounds: int) -> None:
    if rounds < 1:
        raise ConfigError(f"follow_best needs rounds of 1 or more, got {rounds}")


@STRATEGIES.register
@strategy(looks_back=True, places=lambda: turn_starts(), check=_check_follow_best)
def follow_best(earlier: Sequence[Round], setting: Setting, *, rounds: int = 3) -> Sequence[Request]:
    """Groups of candidates for each turn, which continue the best candidate of the turn before.

    The first round samples ``group_size`` rows. In round k the row of the highest reward, of those that share its
    first k turns, is continued before its turn k by ``group_size`` - 1 further rows, so that with the row itself there
    are ``group_size`` candidates for turn k; the first of equal ones is the best. A prompt whose best row has no such
    turn is complete.

    Units: rounds, at most one for each turn after the first.   Raises: ConfigError for less than one.
    Source: AT-GRPO, arXiv:2510.11062, tree-structured sampling. Deviation: candidates are complete rows and the best is
        that of the highest reward of the complete row; the paper samples and scores single turns.
    """
    if not earlier:
        return setting.groups(0, setting.num_prompts)
    if len(earlier) > rounds or setting.group_size < 2:
        return ()
    requests: list[Request] = []
    for prompt in range(setting.num_prompts):
        branch = _best_branch(earlier, prompt)
        if branch is not None:
            first = setting.group_size + (len(earlier) - 1) * (setting.group_size - 1)
            members = tuple(range(first, first + setting.group_size - 1))
            requests.append(Request(prompt=prompt, members=members, continues=branch))
    return requests


def _best_branch(earlier: Sequence[Round], prompt: int) -> Branch | None:
    """Where the best row of a prompt is continued next; None if it has ended."""
    best: tuple[float, int, int, Sequence[int]] | None = None
    for number, round_ in enumerate(earlier):
        rows = (round_.prompt_B == prompt).nonzero().flatten().tolist()
        if not rows:
            return None  # a round without rows of the prompt: it is complete
        for row in sorted(rows, key=lambda row: int(round_.member_B[row])):
            reward = float(round_.reward_B[row]) if bool(round_.valid_B[row]) else -torch.inf
            if best is None or reward > best[0]:
                best = reward, int(round_.member_B[row]), number, round_.places_B[row]
    if best is None:
        return None
    _, member, number, places = best
    turn = len(earlier) - 1 - number  # of the turns that this row sampled after its first
    return Branch(member, places[turn]) if turn < len(places) else None


@ESTIMATORS.register
@estimator(turns=True)
def turns_of_one_state(
    feedback: Feedback, advantage_BT: Tensor, *, turn_rewards: bool = False, eps: float = 1e-6
) -> Tensor:
    """A turn against the turns of other rows that begin in the same state: the prompt, or shared turns.

    A_t = (v - mean) / (std + eps) over these, sample std, v the reward of the row, or, with ``turn_rewards``, that of
    the turn; 0 where fewer than two are known, or all are equal. A row counts in the turns that it sampled, not in
    those that it shares. It replaces the advantage.

    Units: any reward scale -> dimensionless; eps in the reward's units.   Raises: ConfigError if no sample has turns.
    Source: AT-GRPO, arXiv:2510.11062, agent- and turn-wise groups.
    """
    turns, mask_BT = feedback.turns.rewards, feedback.mask_BT
    B, S = turns.value_BS.shape
    value_BS = turns.value_BS.double().where(turns.valid_BS, torch.nan)
    if not turn_rewards:
        value_BS = feedback.reward_B.double()[:, None].expand(B, S)
    value_BS = value_BS.where(feedback.valid_B[:, None], torch.nan).clone()
    sampled_by_BT = torch.arange(B)[:, None].expand(mask_BT.shape)
    sampled_by_BT = sampled_by_BT if feedback.sampled_by_BT is None else feedback.sampled_by_BT
    numbers: dict[tuple[int, ...], int] = {}
    state_BS = torch.full((B, S), -1)
    for row, group in enumerate(feedback.group_B.tolist()):
        for turn in range(S):
            within_T = (turns.scope_BT[row] == turn) & mask_BT[row]
            start = int(within_T.int().argmax())
            if not bool(within_T.any()) or int(sampled_by_BT[row, start]) != row:
                value_BS[row, turn] = torch.nan
                continue
            before = int(sampled_by_BT[row, start - 1]) if turn else -1
            state_BS[row, turn] = numbers.setdefault((group, turn, start if turn else 0, before), len(numbers))
    score_BS = standardized_among(value_BS.flatten(), state_BS.flatten(), eps=eps).reshape(B, S)
    return turns.at_decisions(score_BS).to(advantage_BT)
