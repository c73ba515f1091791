"""The block ``kl`` of the sections ``advantage`` and ``objective``."""

from __future__ import annotations

from pydantic import Field, model_validator

from mmgrpo.config.sections import Section


class KLConfig(Section):
    """A divergence from the reference and its weight."""

    divergence: str | None = Field(
        default=None, description="a registered divergence, for example gaussian or k3; computed if beta > 0"
    )
    beta: float = Field(default=0.0, ge=0, description="weight of the divergence; 0: no reference pass")

    @model_validator(mode="after")
    def _names_divergence(self) -> KLConfig:
        if self.beta > 0 and self.divergence is None:
            raise ValueError("beta > 0 needs divergence, for example gaussian, k1 or k3")
        return self
