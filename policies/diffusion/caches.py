"""Caches of diffusers on the denoisers, which carry state from call to call.

A cached block returns values of an earlier call, so a step depends on more than its latents, and gradients do not reach
the skipped blocks. They are disabled while decisions are sampled or scored; ``RolloutCache`` runs one at the steps of a
rollout that are not trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast, final

import diffusers.hooks
from diffusers.hooks.hooks import StateManager
from diffusers.hooks.mag_cache import MagCacheState
from diffusers.models.cache_utils import CacheMixin
from torch import nn

from mmgrpo.errors import ConfigError

from .approximations import Approximation, share_that_ran
from .cache_stretches import CacheStretches
from .dual_block_cache import NAME as DUAL_BLOCK_CACHE

CONFIGS: Mapping[str, type] = {
    name: getattr(diffusers.hooks, f"{name}Config")
    for name in ("FirstBlockCache", "TaylorSeerCache", "MagCache", "SeaCache", "PyramidAttentionBroadcast")
}
"""The configurations of diffusers' caches, by name. FasterCache is none of them: it fails unless its first calls are
those of the first steps of a schedule."""

TIMESTEP = "current_timestep_callback"


@final
class RolloutCache(Approximation):
    """A cache of diffusers on the denoisers, for the steps of a rollout that are not trained.

    Every stretch of consecutive cached steps begins with an empty cache, so nothing of a trained step is read.
    """

    key = "policy.cache"

    def __init__(self, pipeline: Any, settings: Mapping[str, Any], denoisers: Mapping[str, nn.Module]) -> None:
        """Checks the settings by installing the cache once.

        Args:
            pipeline: its ``current_timestep`` is read by caches that depend on the timestep.
            settings: ``name`` of the cache and the fields of its configuration.
            denoisers: the modules to install it on, by component name.

        Raises:
            ConfigError: no such cache, settings that diffusers rejects, or a denoiser that takes no cache or has one.
        """
        self._config = _config_of(pipeline, settings)
        self._denoisers = denoisers
        self._hooks: dict[nn.Module, list[_InstalledHook]] = {}
        self._stretches = CacheStretches(self._name, self._num_filling, self._first_reuse)
        with self.installed():
            pass

    def require_effect(self, is_untrained: Callable[[int], bool], num_steps: int) -> None:
        """Raises ConfigError as ``CacheStretches.require_reuse``."""
        self._stretches.require_reuse(is_untrained, num_steps)

    @property
    def _num_filling(self) -> int:
        """Steps at the beginning of each stretch that are computed completely."""
        is_taylor_seer = isinstance(self._config, diffusers.hooks.TaylorSeerCacheConfig)
        return max(self._config.disable_cache_before_step, 1) if is_taylor_seer else 1

    @property
    def _first_reuse(self) -> int:
        """The first step of a rollout that may be skipped."""
        config = self._config
        is_mag = isinstance(config, diffusers.hooks.MagCacheConfig)
        return int(config.retention_ratio * config.num_inference_steps + 0.5) if is_mag else 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Installs the cache within the context, empty."""
        try:
            for name, module in self._denoisers.items():
                self._install(name, module)
            yield
        finally:
            for module in self._hooks:
                cast(CacheMixin, module).disable_cache()
            self._hooks.clear()
            self._stretches.forget_calls()

    def is_on(self, module: nn.Module) -> bool:
        """Whether the cache is installed on a module; it is not on other weights than the current ones."""
        return module in self._hooks

    @contextmanager
    def off(self) -> Iterator[None]:
        """Computes all blocks within the context, and leaves what the cache holds as it is."""
        with _bypassed([hook.hook for hooks in self._hooks.values() for hook in hooks]):
            yield

    @contextmanager
    def at(self, module: nn.Module, iteration: int) -> Iterator[list[float]]:
        """Prepares the cache for a call of a denoiser at a step.

        Args:
            module: the denoiser.
            iteration: the step, from 0.

        Yields:
            list[float]: after the context it has the share of the denoiser's parameters whose blocks ran, from 0 to 1.
        """
        hooks = self._hooks[module]
        ordinal, is_new_stretch = self._stretches.next_call(module, iteration)
        if is_new_stretch:
            _reset(hooks)
        managers = [manager for hook in hooks for manager in _managers(hook.hook)]
        is_named = any(manager._context is not None for manager in managers)  # by the pipeline, as cond and uncond
        ran: set[int] = set()
        share: list[float] = []
        with ExitStack() as stack:
            if not is_named:
                stack.enter_context(cast(CacheMixin, module).cache_context(f"call {ordinal}"))
            for manager in managers:
                self._tell_step(manager, iteration)
            for number, hook in enumerate(hooks):
                stack.enter_context(_noted(hook.hook, ran, number))
            try:
                yield share
            except (TypeError, ValueError, AttributeError, LookupError, AssertionError) as error:
                kind = type(module).__name__
                raise RuntimeError(f"{error}; policy.cache: {self._name} may not support {kind}: remove it") from error
        skipped = [hook.owner for number, hook in enumerate(hooks) if number not in ran and hook.may_skip]
        share.append(share_that_ran(module, skipped))

    def _tell_step(self, manager: StateManager, iteration: int) -> None:
        if manager._state_cls is MagCacheState:
            manager.get_state().step_index = iteration  # it counts calls, and trained steps are none
        if isinstance(self._config, diffusers.hooks.SeaCacheConfig) and manager.context.step_index is None:
            raise ConfigError(
                "policy.cache: SeaCache needs the step and its noise level, which this pipeline does not pass to its "
                "denoiser; use FirstBlockCache"
            )

    @property
    def _name(self) -> str:
        return type(self._config).__name__.removesuffix("Config")

    def _install(self, name: str, module: nn.Module) -> None:
        kind, cache = type(module).__name__, self._name
        if not isinstance(module, CacheMixin):
            raise ConfigError(f"policy.cache: {kind}, the pipeline's {name}, takes no cache of diffusers; remove it")
        before = {id(hook.hook) for hook in _hooks_of(module)}
        try:
            module.enable_cache(self._config)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise ConfigError(f"policy.cache: {cache} cannot be enabled on {kind}, the {name}: {error}") from error
        self._hooks[module] = [hook for hook in _hooks_of(module) if id(hook.hook) not in before]
        if not self._hooks[module]:
            raise ConfigError(f"policy.cache: {cache} has no effect on {kind}, the {name}: no block has its names")


@dataclass(frozen=True, slots=True)
class _InstalledHook:
    owner: nn.Module
    hook: Any

    @property
    def may_skip(self) -> bool:
        """Whether the hook may skip its block; else it only prepares others."""
        return self.hook.fn_ref.original_forward is not None


def _config_of(pipeline: Any, settings: Mapping[str, Any]) -> Any:
    name, fields = str(settings.get("name")), {key: value for key, value in settings.items() if key != "name"}
    if name not in CONFIGS:
        raise ConfigError(f"policy.cache: unknown name {name!r}; use one of {', '.join((*CONFIGS, DUAL_BLOCK_CACHE))}")
    kind: Any = CONFIGS[name]
    allowed = {field.name for field in dataclasses.fields(kind)}
    if unknown := [key for key in fields if key not in allowed]:
        options = ", ".join(sorted(field for field in allowed if "callback" not in field and field[0] != "_"))
        raise ConfigError(f"policy.cache: {name} has no {', '.join(unknown)}; it has {options}")
    if TIMESTEP in allowed:
        if not hasattr(type(pipeline), "current_timestep"):
            raise ConfigError(
                f"policy.cache: {name} reads the timestep, which {type(pipeline).__name__} does not state"
            )
        fields[TIMESTEP] = lambda: pipeline.current_timestep
    try:
        return kind(**fields)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"policy.cache: {name}: {error}") from error


def _reset(hooks: Sequence[_InstalledHook]) -> None:
    """Empties the cache; the name of the current call, which diffusers would reset too, stays."""
    contexts = [(manager, manager._context) for hook in hooks for manager in _managers(hook.hook)]
    for hook in hooks:
        if hook.hook._is_stateful:
            hook.hook.reset_state(hook.owner)
    for manager, context in contexts:
        manager.set_context(context)


@contextmanager
def _noted(hook: Any, ran: set[int], number: int) -> Iterator[None]:
    """Adds the number to ``ran`` if the hook computes its block."""
    original = hook.fn_ref.original_forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        ran.add(number)
        return original(*args, **kwargs)

    if original is not None:
        hook.fn_ref.original_forward = forward
    try:
        yield
    finally:
        hook.fn_ref.original_forward = original


def cache_names(modules: Sequence[nn.Module]) -> list[str]:
    """Class names of the caching hooks on these modules and their submodules."""
    return sorted({type(hook.hook).__name__ for module in modules for hook in _hooks_of(module)})


@contextmanager
def caches_off(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Disables caching hooks within the context; afterwards they are restored with their state."""
    with _bypassed([hook.hook for module in modules for hook in _hooks_of(module)]):
        yield


@contextmanager
def _bypassed(hooks: Sequence[Any]) -> Iterator[None]:
    references = [hook.fn_ref for hook in hooks]
    before = [(ref.pre_forward, ref.forward, ref.post_forward) for ref in references]
    try:
        for ref in references:
            ref.pre_forward, ref.post_forward = _arguments, _output
            ref.forward = ref.original_forward or ref.forward
        yield
    finally:
        for ref, (pre_forward, forward, post_forward) in zip(references, before, strict=True):
            ref.pre_forward, ref.forward, ref.post_forward = pre_forward, forward, post_forward


def _hooks_of(module: nn.Module) -> list[_InstalledHook]:
    """The caching hooks on a module and its submodules."""
    parts = [(part, vars(part).get("_diffusers_hook")) for part in module.modules()]
    hooks = [(part, hook) for part, registry in parts if registry is not None for hook in registry.hooks.values()]
    return [_InstalledHook(part, hook) for part, hook in hooks if hook._is_stateful or _managers(hook)]


def _managers(hook: Any) -> list[StateManager]:
    """The states that a hook has or shares with others, as the later blocks of a first-block cache do."""
    return [value for value in vars(hook).values() if isinstance(value, StateManager)]


def _arguments(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def _output(module: nn.Module, output: Any) -> Any:
    return output
