"""Terms of most objectives: a divergence from another policy, and the entropy."""

from __future__ import annotations

from mmgrpo.errors import ConfigError
from mmgrpo.maths.divergences import LOGPROB_DIVERGENCES
from mmgrpo.maths.terms import TERMS, Term, divergence_term, entropy_term
from mmgrpo.maths.terms.view_terms import estimated_divergence
from mmgrpo.values import REFERENCE, Value


@TERMS.register
def divergence(*, form: str = "k3", view: str = REFERENCE, grad: bool = False) -> Term:
    """The mean divergence of the current policy from a view of it.

    L = sum v D(now || view), v the aggregate's weight. With ``grad`` the gradient goes through the view too.

    Units: nats, or those of the form (``objective.kl.divergence``).
    Raises: ConfigError for ``grad`` with a form that is no function of two log-probabilities.
    Source: GRPO, arXiv:2402.03300, eq. 3; with k3 from the view of a masked image at a weight of -0.01 the implicit
        perception loss of PAPO, arXiv:2507.06448, and its code (MikeWangWZHL/PAPO).
    """
    if form in LOGPROB_DIVERGENCES:
        return estimated_divergence(form, view=view, grad=grad)
    if grad:
        raise ConfigError(f"gradients go through a view of {', '.join(LOGPROB_DIVERGENCES)}: leave out grad of {form}")
    return divergence_term(Value(form, view), beta=1.0, name=f"{form}_{view}")


@TERMS.register
def entropy() -> Term:
    """The mean entropy, rewarded.

    L = -sum v H, v the aggregate's weight.

    Units: nats.   Source: A3C, arXiv:1602.01783, sec. 4.
    """
    return entropy_term(bonus=1.0)
