"""Methods that train a part of what was drawn."""

from __future__ import annotations

from tests.configs.method_steps import Step

LOSSES: dict[str, tuple[Step, float]] = {
    # of six the first two right and the first two wrong train; entropies 0.1, 0.9, 0.2, 0.5 of quantile
    # 0.5 + 0.4 / 4 = 0.6 leave the second: -A / 4, A = 0.5 / 0.5478226
    "d3s": (
        Step(
            reward=(1, 1, 1, 0, 0, 0),
            lengths=[1] * 6,
            old_logprob=((-1.0,),) * 6,
            entropy=((0.1,), (0.9,), (2.0,), (0.2,), (0.5,), (2.0,)),
        ),
        -0.5 / 0.5478226 / 4,
    ),
}
