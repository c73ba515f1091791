"""Any transformers language or vision-language model as a policy: a prompt goes through it once per group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.system.lazy import exports

from .settings import LanguageSettings

if TYPE_CHECKING:
    from .policy import LanguagePolicy

__all__ = ["LanguagePolicy", "LanguageSettings"]

__getattr__ = exports(__name__, {"LanguagePolicy": "mmgrpo.policies.language.policy"})
