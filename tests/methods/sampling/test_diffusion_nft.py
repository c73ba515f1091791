"""DiffusionNFT: numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.methods.sampling.diffusion_nft import negative_error, positive_error
from mmgrpo.values import from_reference
from tests.configs.method_rows import A_TWO, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# r = 0.5 + A / 10 of the first; both errors of the other are 0.4; kl 1e-4 * 0.5
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        lengths=(1, 1),
        values={
            positive_error(1.0): [[0.2], [0.4]],
            negative_error(1.0): [[0.6], [0.4]],
            from_reference("velocity_mse"): [[0.5]] * 2,
        },
    ),
    5 * ((0.5 + A_TWO / 10) * 0.2 + (0.5 - A_TWO / 10) * 0.6 + 0.4) / 2 + 5e-5,
)


def test_loss_of_the_method() -> None:
    assert_loss("diffusion-nft", *LOSS)
