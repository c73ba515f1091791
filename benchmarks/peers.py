"""The cost of a sample in the published runs of methods, counted from their papers and code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A published run, in F: forwards of the denoiser for one sample.

    Attributes:
        run: which.
        guided: whether every pass runs twice, for classifier-free guidance.
        weight: F of a forward with its backward: 2 with LoRA, 3 with all weights, 1 more with checkpointing.
        sample: F to draw a sample.
        train: F of the update.
        reference: F of the frozen reference.
    """

    run: str
    guided: bool
    weight: int
    sample: float
    train: float
    reference: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.sample + self.train + self.reference


PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        # 10 steps x 2, 9 of them trained, each with the reference; arXiv:2505.05470, config/grpo.py general_ocr_sd3
        "flow-grpo": Peer(
            run="SD3.5-M, guidance, 10 steps, 9 trained, LoRA, KL",
            guided=True,
            weight=2,
            sample=20,
            train=36,
            reference=18,
        ),
        # arXiv:2509.05952, config/grpo.py geneval_sd3_fast_nocfg
        "flow-grpo-fast": Peer(
            run="SD3.5-M, 10 steps, 3 trained, LoRA", guided=False, weight=2, sample=10, train=6, reference=0
        ),
        # arXiv:2510.22319, config/grpo_guard.py geneval_sd3_rationorm
        "grpo-guard": Peer(
            run="SD3.5-M, guidance, 10 steps, 9 trained, LoRA", guided=True, weight=2, sample=20, train=36, reference=0
        ),
        # timestep_fraction 0.6 of 11, checkpointing; arXiv:2505.07818, finetune_flux_grpo_8gpus_lora.sh
        "dance-grpo": Peer(
            run="FLUX, 12 steps, 6 trained, LoRA", guided=False, weight=3, sample=12, train=18, reference=0
        ),
        # all weights with checkpointing; arXiv:2507.21802, finetune_flux_grpo_MixGRPO.sh
        "mix-grpo": Peer(
            run="FLUX, 25 steps, 4 trained, all weights", guided=False, weight=4, sample=25, train=16, reference=0
        ),
    }
)
"""By the name of the method."""
