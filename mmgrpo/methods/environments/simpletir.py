"""SimpleTIR, arXiv:2509.02479.

Samples with a void turn, which has neither a program nor an answer, are not trained on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import FILTERS, sample_filter
from mmgrpo.types import Sample

if TYPE_CHECKING:
    from torch import Tensor

FENCE = re.compile(r"^```", re.MULTILINE)
ANSWER = "\\boxed{"


@FILTERS.register
@sample_filter()
def no_void_turns(feedback: Feedback, advantage_BT: Tensor, *, reward: str) -> Tensor:
    """The samples without a void turn; one with a reward of the run and decisions of which that is unknown is kept.

    keep = the reward ``reward``, such as ``void_turns``, is 0 or does not apply. Void samples count in the advantages
    of the others.

    Units: none.   Raises: ConfigError for a reward that the run does not have.
    Source: SimpleTIR, arXiv:2509.02479, and its code (ltzheng/SimpleTIR, ``mask_void_turns``).
    """
    del advantage_BT
    column = feedback.reward(reward)
    return ((column.value_B == 0) | ~column.valid_B) & feedback.valid_B & feedback.mask_BT.any(1)


def void_turns(samples: Sequence[Sample]) -> list[float | None]:
    """Reward: the number of turns with neither a complete block of code nor an answer; None without turns.

    A block of code has an opening and a closing line of three backticks; an answer has ``\\boxed{``.

    Args:
        samples: conversations.

    Returns:
        list[float | None]: a number per sample, from 0 on.
    """
    return [float(sum(map(_is_void, sample.turn_texts))) if sample.turn_ends else None for sample in samples]


def _is_void(text: str) -> bool:
    return ANSWER not in text and len(FENCE.findall(text)) < 2
