"""The scale of losses in float16, whose gradients would underflow otherwise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, final

from mmgrpo.policy import Policy, SupportsFloat16

INITIAL_SCALE, GROWTH_INTERVAL, MAX_SCALE = 2.0**16, 2000, 2.0**24
"""The first two are those of torch.amp.GradScaler."""


@final
@dataclass(slots=True)
class LossScaler:
    """A power of two that multiplies losses: halved when gradients overflow, doubled after enough updates without that.

    An update whose gradients overflow is accumulated again at half the scale, so that none is lost.

    Source: Micikevicius et al., Mixed Precision Training, arXiv:1710.03740, sec. 3.2. Deviation: there and in
    torch.amp.GradScaler such an update is skipped.

    Attributes:
        scale: the number.
        num_finite: updates since it changed.
    """

    scale: float = INITIAL_SCALE
    num_finite: int = 0

    @classmethod
    def of(cls, policy: Policy) -> LossScaler | None:
        """The scaler of a policy that computes in float16; None for others."""
        return cls() if isinstance(policy, SupportsFloat16) and policy.is_float16 else None

    def lower(self) -> bool:
        """Halves the scale; False if it is 1 already."""
        self.num_finite = 0
        if self.scale <= 1:
            return False
        self.scale /= 2
        return True

    def count_finite(self) -> None:
        """Counts an update with finite gradients; doubles the scale after ``GROWTH_INTERVAL`` of them."""
        self.num_finite += 1
        if self.num_finite >= GROWTH_INTERVAL and self.scale < MAX_SCALE:
            self.scale, self.num_finite = self.scale * 2, 0

    def state_dict(self) -> dict[str, Any]:
        """Both numbers."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores ``state_dict``."""
        self.scale, self.num_finite = float(state["scale"]), int(state["num_finite"])
