"""Contexts that put a system text before the prompt; each one makes the policy a separate expert."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from mmgrpo.data.history import Context

SYSTEM_CONTEXTS: Mapping[str, Callable[..., Context]] = MappingProxyType({})
"""Contexts of system texts by the name that ``rollout.prompt_templates`` and ``views`` use; called with their
settings."""
