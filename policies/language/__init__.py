"""Any transformers language or vision-language model as a policy: a prompt goes through it once per group."""

from mmgrpo.policies.language.policy import LanguagePolicy
from mmgrpo.policies.language.settings import LanguageSettings

__all__ = ["LanguagePolicy", "LanguageSettings"]
