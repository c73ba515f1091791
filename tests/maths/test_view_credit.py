"""Credit by other views: values by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.maths.view_credit import excess_likelihood, outside_view
from mmgrpo.values import of_view, seen_in
from tests.maths.feedback_rows import feedback_of


def test_what_was_likelier_than_the_view_finds_it_takes_away() -> None:
    # 0.5, 0 and a masked one: a mean of 0.25; nothing where all of it is likelier in the view
    values = {of_view("merged"): torch.tensor([[-1.5, -0.5, -9.0], [-0.5, -0.5, -0.5]])}
    feedback = feedback_of(
        [1.0, 0.0], [0, 0], mask=[[1, 1, 0], [1, 1, 1]], values=values, old_logprob=[[-1.0] * 3, [-1.0] * 3]
    )
    found_BT = excess_likelihood(view="merged", weight=2.0).assign(feedback, torch.ones(2, 3))
    torch.testing.assert_close(found_BT, torch.tensor([[0.5] * 3, [1.0] * 3]))
    with pytest.raises(ConfigError, match="at least 0"):
        excess_likelihood(view="merged", weight=-1.0)


def test_who_has_the_view_keeps_no_advantage() -> None:
    values = {seen_in("peer"): torch.tensor([[1.0] * 3, [0.0] * 3])}
    feedback = feedback_of([1.0, 0.0], [0, 0], values=values)
    found_BT = outside_view(view="peer").assign(feedback, torch.ones(2, 3))
    torch.testing.assert_close(found_BT, torch.tensor([[0.0] * 3, [1.0] * 3]))
