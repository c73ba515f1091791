"""ARPO, arXiv:2507.19849.

Rows branch after tool results at which the policy is less certain than it was at first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import STRATEGIES, Branch, Request, Round, Setting, strategy
from mmgrpo.maths.strategies.branch_points import Places, Row
from mmgrpo.values import ENTROPY

if TYPE_CHECKING:
    from torch import Tensor


def uncertain_turns(*, base: float, weight: float, above: float, tokens: int, vocabulary: int | None) -> Places:
    """Before the turns after tool results at which the entropy has risen, the first of them first.

    A turn is one if base + weight (H_k - H_0) > above, H_k the mean entropy of the first ``tokens`` tokens of turn k,
    divided by the logarithm of the size of the vocabulary, if that is known.

    Units: entropies in nats, or shares of the largest one.
    Raises: ConfigError for less than one token, or a vocabulary of less than two.
    """
    if tokens < 1 or (vocabulary is not None and vocabulary < 2):
        raise ConfigError(f"branch_where_uncertain needs tokens >= 1 and vocabulary >= 2, got {tokens}, {vocabulary}")
    unit = 1.0 if vocabulary is None else math.log(vocabulary)

    def find(row: Row) -> Sequence[int]:
        if row.value_T is None:
            raise ConfigError("branch_where_uncertain needs the entropies of tokens, which this policy does not give")
        entropies = [_mean(row.value_T[start : min(end, start + tokens)]) / unit for start, end in row.turns]
        return [
            start
            for (start, _), entropy in zip(row.turns, entropies, strict=True)
            if start and base + weight * (entropy - entropies[0]) > above
        ]

    return Places(find=find, values=(ENTROPY,))


def _mean(value_T: Tensor) -> float:
    return float(value_T.double().mean()) if len(value_T) else 0.0


def _check_branch_where_uncertain(share: float, most: int, rounds: int) -> None:
    if not 0 < share <= 1 or most < 1 or rounds < 1:
        raise ConfigError(
            "branch_where_uncertain needs a share above 0 and at most 1, and most and rounds of 1 or more, got "
            f"{share}, {most}, {rounds}"
        )


@STRATEGIES.register
@strategy(
    looks_back=True,
    places=lambda base, weight, above, tokens, vocabulary: uncertain_turns(
        base=base, weight=weight, above=above, tokens=tokens, vocabulary=vocabulary
    ),
    check=_check_branch_where_uncertain,
)
def branch_where_uncertain(
    earlier: Sequence[Round],
    setting: Setting,
    *,
    share: float = 0.5,
    most: int = 1,
    rounds: int = 3,
    base: float = 0.5,
    weight: float = 0.2,
    above: float = 0.5,
    tokens: int = 20,
    vocabulary: int | None = None,
) -> Sequence[Request]:
    """A ``share`` of each group is sampled, and grows to the group by rows that continue after uncertain tool results.

    A row branches before a turn after a tool result, into ``most`` further rows, if base + weight (H_k - H_0) > above,
    H_k the mean entropy of the first ``tokens`` tokens of turn k, as a share of the largest entropy of the
    ``vocabulary`` (null: in nats). Rows branch in the order of their members, in each of up to ``rounds`` rounds, while
    the group has less than ``group_size``; then it is filled with rows from the prompt.

    Units: most in rows; share, base and above are dimensionless.   Raises: ConfigError for numbers without any row.
    Source: ARPO, arXiv:2507.19849, entropy-based adaptive beaming, and its code (RUC-NLPIR/ARPO,
        vllm_rollout_with_tools.py). Deviation: complete rows branch afterwards, where the code splits them as they are
        sampled, with a random number in the place of ``above``.
    """
    prompts = range(setting.num_prompts)
    if not earlier:
        first = tuple(range(math.ceil(share * setting.group_size)))
        return tuple(Request(prompt=prompt, members=first) for prompt in prompts)
    sizes = dict.fromkeys(prompts, 0)
    for round_ in earlier:
        for request in round_.requests:
            sizes[request.prompt] += len(request.members)
    branches = _further_branches(earlier, most) if len(earlier) <= rounds else {}
    requests = [
        Request(prompt=prompt, members=(sizes[prompt] + number,), continues=branch)
        for prompt in prompts
        for number, branch in enumerate(branches.get(prompt, ())[: setting.group_size - sizes[prompt]])
    ]
    if requests:
        return requests
    return tuple(
        Request(prompt=prompt, members=tuple(range(sizes[prompt], setting.group_size)))
        for prompt in prompts
        if sizes[prompt] < setting.group_size
    )


def _further_branches(earlier: Sequence[Round], most: int) -> dict[int, list[Branch]]:
    """The branches of the last round's rows, each ``most`` times, by prompt and in the order of their members."""
    last, branches = earlier[-1], dict[int, list[Branch]]()
    rows = zip(last.prompt_B.tolist(), last.member_B.tolist(), last.places_B, strict=True)
    for prompt, member, places in sorted((prompt, member, tuple(places)) for prompt, member, places in rows):
        branches.setdefault(prompt, []).extend(Branch(member, place) for place in places for _ in range(most))
    return branches
