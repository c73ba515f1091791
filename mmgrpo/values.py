"""Names of what may be known of a decision beside its log-probability.

Terms of the objective, selections, modulations and estimators say which of them they need; the policy gives those, and
no others are computed.
"""

from __future__ import annotations

from dataclasses import dataclass

REFERENCE = "reference"
OLD = "old"


@dataclass(frozen=True, slots=True)
class Value:
    """A number per decision, by name.

    Attributes:
        name: ``entropy``, ``certainty``, ``logprob``, or a divergence such as ``k3`` or ``gaussian``.
        view: whose, where it is another policy than that of now: ``reference``, ``old`` (the weights that sampled),
            the name under which weights were kept, or one of the section ``views``, which have log-probabilities. A
            divergence is from that view; a log-probability is the view's.
        numbers: what the value is computed with, where its name alone does not say.
    """

    name: str
    view: str | None = None
    numbers: tuple[float, ...] = ()

    def __str__(self) -> str:
        named = f"{self.name}({', '.join(f'{number:g}' for number in self.numbers)})" if self.numbers else self.name
        return named if self.view is None else f"{named}@{self.view}"


ENTROPY = Value("entropy")
DRIFT = Value("gaussian", OLD)
"""Divergence of a Gaussian step from the policy that sampled."""
VALUE = Value("value")
"""What a critic expects of the rewards to come, before the decision."""


def from_reference(divergence: str) -> Value:
    """The divergence of the policy of now from the reference, by its name."""
    return Value(divergence, REFERENCE)


def of_view(view: str) -> Value:
    """The log-probability of the same decision in a view."""
    return Value("logprob", view)


def seen_in(view: str) -> Value:
    """Whether the decision's row has a view of the section ``views``: 1 or 0."""
    return Value("seen", view)
