"""The average of the weights: flow_grpo's ramp by hand, its lag, and its state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mmgrpo.config import EmaConfig
from mmgrpo.training.optimizer import Average, ema_decay


def averaged(config: EmaConfig, num_updates: int) -> float:
    """The average of a weight that starts at 0 and is n after update n."""
    weight = nn.Parameter(torch.zeros((), dtype=torch.float64))
    average = Average([weight], config)
    for n in range(1, num_updates + 1):
        weight.data.fill_(n)
        average.update()
    with average.applied():
        result = float(weight.detach())
    assert float(weight.detach()) == num_updates
    return result


def test_share_is_the_ramp_of_the_optimizer_updates() -> None:
    every_update = EmaConfig(decay=0.9)
    # (1 + n) / (10 + n): 2 / 11, 8 / 17, and 81 / 90 = 0.9 at n = 80
    assert [ema_decay(n, every_update) for n in (1, 7, 80, 81)] == pytest.approx([2 / 11, 8 / 17, 0.9, 0.9])
    due = EmaConfig(decay=0.9, every=8, times=2)
    assert [n for n in range(1, 25) if ema_decay(n, due) < 1] == [7, 15, 23]
    assert ema_decay(7, due) == pytest.approx(64 / 289)


def test_average_by_hand() -> None:
    config = EmaConfig(decay=0.9, every=8, times=2)
    assert averaged(config, 6) == 0
    # update 7: (1 - 64 / 289) 7 = 1575 / 289; update 15 keeps (16 / 25)^2 = 0.4096 of it
    assert averaged(config, 14) == pytest.approx(1575 / 289)
    assert averaged(config, 15) == pytest.approx(0.4096 * 1575 / 289 + 0.5904 * 15)


@pytest.mark.parametrize(("times", "early", "late"), [(1, 54.7057, 73.0), (2, 32.0685, 35.1053), (4, 16.0309, 16.2626)])
def test_lag_is_that_of_the_published_runs(times: int, early: float, late: float) -> None:
    # once the decay is d = 0.9 ** times, an average taken at update 2047 lags by 8 d / (1 - d): 72, 34.1, 15.3
    config = EmaConfig(decay=0.9, every=8, times=times)
    assert 128 - averaged(config, 128) == pytest.approx(early, rel=1e-4)
    assert 2048 - averaged(config, 2048) == pytest.approx(late, rel=1e-4)


def test_restored_average_continues_exactly() -> None:
    config = EmaConfig(decay=0.5, every=2)
    weight = nn.Parameter(torch.zeros(3))
    restored = Average([weight], config)
    for n in range(1, 4):
        weight.data.fill_(n)
        restored.update()
    other = Average([weight], config)
    other.load_state_dict(restored.state_dict())
    for average in (restored, other):
        average.update()
        weight.data.fill_(9.0)
        average.update()
    with restored.applied():
        expected = weight.detach().clone()
    with other.applied():
        assert torch.equal(weight, expected)
    assert 0 < float(expected[0]) < 9
