"""Names of values of a decision other than its log-probability.

Terms of the objective, selections, modulations and estimators declare the values they need; the policy computes those
and no others.
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
        view: the other policy, if the value involves one: ``reference``, ``old`` (the behavior policy), a name of
            stored weights, or one of the section ``objective.views``, which have log-probabilities and values of the
            distribution. A divergence is from that view; any other value is computed by the view.
        numbers: parameters of the value.
    """

    name: str
    view: str | None = None
    numbers: tuple[float, ...] = ()

    def __str__(self) -> str:
        named = f"{self.name}({', '.join(f'{number:g}' for number in self.numbers)})" if self.numbers else self.name
        return named if self.view is None else f"{named}@{self.view}"


ENTROPY = Value("entropy")
LOGPROB_MEAN = Value("logprob_mean")
"""Unweighted mean of the log-probabilities of all possible tokens."""
RANK = Value("rank")
"""Number of tokens that are likelier than the sampled one; without grad."""
SEMANTIC_ENTROPY = Value("semantic_entropy")
"""Entropy of the likeliest tokens, weighted by the dissimilarity of their embeddings; available only at sampling."""
PEERS = Value("peer_divergence")
"""Divergence of the distributions of the group's members at the position of the decision; without grad."""
OF_DISTRIBUTION = frozenset(("entropy", "logprob_mean", "rank", "nucleus_entropy", "top_logprob"))
"""Names of values of the full distribution that a decision is sampled from."""
OF_TWO_DISTRIBUTIONS = frozenset(("generalized_jsd", "sorted_distance"))
"""Names of values of the full distribution together with that of a view; with grad, and computed in the same pass."""
ACROSS_TOKENIZERS = frozenset(("sorted_distance",))
"""Names of those whose view may have another tokenizer."""
OF_STATE = frozenset(("entropy", "logprob_mean", "nucleus_entropy", "top_logprob", "semantic_entropy"))
"""Names of values that depend on the state of a decision only, not on the sampled action."""
GRADIENT_SQUARE = Value("gradient_square")
"""Squared norm of the gradient of the log-probability with respect to the weights of the last layer; without grad."""
GRADIENT_CURVATURE = Value("gradient_curvature")
"""Curvature along that gradient; without grad."""
RANK_OF_STATES = Value("effective_rank")
"""Effective rank of the last hidden states at the row's unmasked decisions, the same for each of them; without grad."""
SAMPLER_LOGPROB = Value("sampler_logprob")
"""Log-probability under the program that sampled, which is not the trainer with ``rollout.engine``."""
DRIFT = Value("gaussian", OLD)
"""Divergence of a Gaussian step from the behavior policy."""
VALUE = Value("value")
"""A critic's prediction of the return, before the decision."""


def from_reference(divergence: str) -> Value:
    """The divergence of the current policy from the reference, by its name."""
    return Value(divergence, REFERENCE)


def nucleus_entropy(mass: float) -> Value:
    """Entropy within the nucleus: among the likeliest tokens with at most this total probability."""
    return Value("nucleus_entropy", numbers=(mass,))


def top_logprob(num: int) -> Value:
    """Mean log-probability of the ``num`` likeliest tokens."""
    return Value("top_logprob", numbers=(num,))


def rank_velocity(stride: int) -> Value:
    """Increase of the effective rank from one prefix of the row to the next, ``stride`` decisions longer."""
    return Value("rank_velocity", numbers=(stride,))


def rank_acceleration(stride: int) -> Value:
    """Increase of ``rank_velocity``."""
    return Value("rank_acceleration", numbers=(stride,))


def attention_distance(window: int) -> Value:
    """Mean distance that local heads attend backward from the decision, clipped at ``window`` positions."""
    return Value("attention_distance", numbers=(window,))


def attention_influence(near: int, far: int) -> Value:
    """Mean attention of global heads to the decision from positions ``near`` to ``far`` after it."""
    return Value("attention_influence", numbers=(near, far))


def of_view(view: str) -> Value:
    """The log-probability of the same decision under a view."""
    return Value("logprob", view)


def mask_of_view(view: str) -> Value:
    """Whether the decision's row has a view of the section ``objective.views``: 1 or 0."""
    return Value("view_mask", view)


def generalized_jsd(view: str, beta: float) -> Value:
    """Divergence of the distribution of all tokens from that of a view."""
    return Value("generalized_jsd", view, (beta,))


def sorted_distance(view: str) -> Value:
    """Distance of the sorted distribution of all tokens from that of a view, which may have another tokenizer."""
    return Value("sorted_distance", view)


def end_logprob(token: int) -> Value:
    """The log-probability of a token, by its id, at the position after the end of a text: at the last decision of a
    finished text, and 0 elsewhere.
    """
    return Value("end_logprob", numbers=(token,))
