"""Terms of the whole distribution that a token is drawn from, beyond the token's own log-probability.

Axes: B samples, T decisions (tokens), P groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.maths.terms import Term

if TYPE_CHECKING:
    pass


VOCABULARY_TERMS: Mapping[str, Callable[..., Term]] = MappingProxyType({})
"""Terms of distributions by the name that a method's configuration uses; called with their numbers."""
