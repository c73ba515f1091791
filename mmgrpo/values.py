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
        name: ``certainty``, ``logprob``, one of ``OF_DISTRIBUTION``, or a divergence such as ``k3`` or ``gaussian``.
        view: whose, where it is another policy than that of now: ``reference``, ``old`` (the weights that sampled),
            the name under which weights were kept, or one of the section ``views``, which have log-probabilities and
            values of the distribution. A divergence is from that view; any other value is the view's.
        numbers: what the value is computed with, where its name alone does not say.
    """

    name: str
    view: str | None = None
    numbers: tuple[float, ...] = ()

    def __str__(self) -> str:
        named = f"{self.name}({', '.join(f'{number:g}' for number in self.numbers)})" if self.numbers else self.name
        return named if self.view is None else f"{named}@{self.view}"


ENTROPY = Value("entropy")
LOGPROB_MEAN = Value("logprob_mean")
"""Mean log-probability of all that could have been drawn, each counting alike."""
RANK = Value("rank")
"""How many others that could have been drawn are likelier than what was; without grad."""
SEMANTIC_ENTROPY = Value("semantic_entropy")
"""Entropy of the likeliest of what could be drawn, by how little they mean the same; known only as it is drawn."""
PEERS = Value("peer_divergence")
"""How far the distributions of the group's members are apart at the decision's place; without grad."""
OF_DISTRIBUTION = frozenset(("entropy", "logprob_mean", "rank", "nucleus_entropy", "top_logprob"))
"""Names of what comes from the whole distribution that a decision is drawn from."""
OF_STATE = frozenset(("entropy", "logprob_mean", "nucleus_entropy", "top_logprob", "semantic_entropy"))
"""Names of what depends on the state of a decision alone, and not on what was sampled there."""
GRADIENT_SQUARE = Value("gradient_square")
"""Squared length of the gradient of the log-probability by the weights of the last layer; without grad."""
GRADIENT_CURVATURE = Value("gradient_curvature")
"""Curvature along that gradient; without grad."""
RANK_OF_STATES = Value("effective_rank")
"""Effective rank of the last hidden states of the row's kept decisions, on each of them; without grad."""
DRIFT = Value("gaussian", OLD)
"""Divergence of a Gaussian step from the policy that sampled."""
VALUE = Value("value")
"""What a critic expects of the rewards to come, before the decision."""


def from_reference(divergence: str) -> Value:
    """The divergence of the policy of now from the reference, by its name."""
    return Value(divergence, REFERENCE)


def nucleus_entropy(mass: float) -> Value:
    """Entropy within the nucleus: among the likeliest that hold at most this probability together."""
    return Value("nucleus_entropy", numbers=(mass,))


def top_logprob(num: int) -> Value:
    """Mean log-probability of the ``num`` likeliest."""
    return Value("top_logprob", numbers=(num,))


def rank_velocity(stride: int) -> Value:
    """How far that rank rises from one beginning of the row to the next, so many decisions apart."""
    return Value("rank_velocity", numbers=(stride,))


def rank_acceleration(stride: int) -> Value:
    """How much faster it rises."""
    return Value("rank_acceleration", numbers=(stride,))


def attention_distance(window: int) -> Value:
    """How far back local heads look from the decision, places beyond the window counting as its end."""
    return Value("attention_distance", numbers=(window,))


def attention_influence(near: int, far: int) -> Value:
    """How much global heads look at the decision from so many places on, on average."""
    return Value("attention_influence", numbers=(near, far))


def of_view(view: str) -> Value:
    """The log-probability of the same decision in a view."""
    return Value("logprob", view)


def seen_in(view: str) -> Value:
    """Whether the decision's row has a view of the section ``views``: 1 or 0."""
    return Value("seen", view)


def end_logprob(token: int) -> Value:
    """The log-probability of a token, by its number, behind a text's end: at the last decision of a text that came to
    its own end, and 0 elsewhere."""
    return Value("end_logprob", numbers=(token,))
