"""Methods that imitate what the policy wrote, or prefer what is given, beside the loss of what is drawn."""

from __future__ import annotations

ELSEWHERE = {"depo"}
