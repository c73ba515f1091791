"""D3S (dynamic dual-level down-sampling): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_loss

# of six the first two right and the first two wrong train; entropies 0.1, 0.9, 0.2, 0.5 of quantile
# 0.5 + 0.4 / 4 = 0.6 leave the second: -A / 4, A = 0.5 / 0.5478226
LOSS = (
    Step(
        reward=(1, 1, 1, 0, 0, 0),
        lengths=[1] * 6,
        old_logprob=((-1.0,),) * 6,
        entropy=((0.1,), (0.9,), (2.0,), (0.2,), (0.5,), (2.0,)),
    ),
    -0.5 / 0.5478226 / 4,
)


def test_loss_of_the_method() -> None:
    assert_loss("d3s", *LOSS)
