"""ULD (universal logit distillation), arXiv:2402.12030: a teacher with any tokenizer."""

from __future__ import annotations

from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.terms import TERMS, Loss, term
from mmgrpo.maths.terms.view_terms import mean_of, view_mask
from mmgrpo.values import sorted_distance as distance_value


@TERMS.register
@term(
    name=lambda view: f"sorted_distance@{view}",
    values=lambda view: (distance_value(view),),
    active=view_mask,
    unscored=True,
)
def sorted_distance(decisions: Decisions, *, view: str) -> Loss:
    """The mean distance of the sorted probabilities of all tokens from those of a teacher, with its full gradient.

    L = sum v sum_i |p_(i) - q_(i)|, of the i-th largest probabilities of the policy and of the teacher.
    The decisions are those at which tokens of both tokenizers begin, so that both distributions follow the same text.
    Both have the policy's temperature. A view whose only value this is may have another tokenizer.

    Units: probability, 0 to 2.
    Source: ULD, arXiv:2402.12030, and TRL's ``ULDLoss``. Deviation: where several tokens of one tokenizer are a span of
        the other, TRL multiplies the first distribution by the probabilities of the later tokens of the span.
    """
    return mean_of(f"sorted_distance@{view}", decisions, decisions[distance_value(view)], view=view)
