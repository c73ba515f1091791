"""Proofs, as far as no checker is needed to say what they are paid."""

from __future__ import annotations

from tests.configs.paid import Answer

PROOF = {"answer": 'lemma "x = x" oops'}


def proved(proof: str, between: str = "\n") -> str:
    inner = [f"<{tag}>{between}{text}{between}</{tag}>" for tag, text in (("reasoning", "so"), ("answer", proof))]
    return between.join(inner)


PAID: dict[str, list[Answer]] = {
    "ntp-for-verification": [  # 0.25 for each form and 2 for the known proof; nothing of it is checked, as it gives up
        (PROOF, proved('lemma "x = x" oops'), 9, 2.5),
        (PROOF, proved('lemma "x = x" oops', between=""), 9, 2.25),
        (PROOF, proved('lemma "x = x" sorry'), 9, 0.5),
        (PROOF, "It is plain.", 9, 0.0),
    ],
}
