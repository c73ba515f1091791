"""The cache of the library cache-dit on the denoisers, at the steps of a rollout that are not trained."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, final

from torch import nn

from mmgrpo.errors import ConfigError
from mmgrpo.system.extras import required

from .approximations import Approximation, share_that_ran
from .cache_stretches import CacheStretches

NAME = "DBCache"
KEY = "policy.cache"
FIELDS = (
    "Fn_compute_blocks", "Bn_compute_blocks", "residual_diff_threshold", "max_accumulated_residual_diff_threshold",
    "max_warmup_steps", "warmup_interval", "max_cached_steps", "max_continuous_cached_steps",
)  # fmt: skip
"""Those of cache-dit's DBCacheConfig that count no steps of a schedule: each stretch of untrained steps begins at 0."""


@dataclass(slots=True)
class _Patched:
    """A denoiser whose forward cache-dit has replaced.

    Attributes:
        forward: the replacing forward.
        manager: cache-dit's manager of its contexts, one for each list of blocks.
        arguments: of a new context, by name.
        contexts: the contexts of each call of a step (with and without the prompt).
    """

    forward: Any
    manager: Any
    arguments: Mapping[str, Mapping[str, Any]]
    contexts: dict[int, dict[str, Any]] = field(default_factory=dict)

    def enter(self, ordinal: int) -> None:
        """Sets the contexts of a call; new ones are empty."""
        if ordinal not in self.contexts:
            self.manager._cached_context_manager = {}
            for name, arguments in self.arguments.items():
                self.manager.reset_context(name, **copy.deepcopy(dict(arguments)))
            self.contexts[ordinal] = self.manager._cached_context_manager
        self.manager._cached_context_manager = self.contexts[ordinal]


@final
class DualBlockCache(Approximation):
    """cache-dit's DBCache: the first blocks run, and decide whether the others reuse their last change.

    cache-dit knows the blocks of a pipeline's denoiser; it is installed on the denoiser alone, and everything that it
    sets is removed after each run. Every stretch of consecutive untrained steps begins with an empty cache.
    """

    key = KEY

    def __init__(self, pipeline: Any, settings: Mapping[str, Any], denoisers: Mapping[str, nn.Module]) -> None:
        """Checks the settings by installing the cache once.

        Args:
            pipeline: cache-dit finds the blocks by its class.
            settings: ``name``, and fields of cache-dit's ``DBCacheConfig``.
            denoisers: the modules to install it on, by component name.

        Raises:
            ConfigError: settings that cache-dit rejects, or a pipeline whose blocks it does not know or has to patch.
            MissingPackageError: cache-dit is not installed.
        """
        self._library = _imported()
        self._config = self._config_of({key: value for key, value in settings.items() if key != "name"})
        self._blocks = self._blocks_of(pipeline, denoisers)
        self._patched: dict[nn.Module, _Patched] = {}
        interval = self._config.warmup_interval
        self._stretches = CacheStretches(NAME, max(self._config.max_warmup_steps, 1) if interval == 1 else 1)
        with self.installed():
            pass

    def require_effect(self, is_untrained: Callable[[int], bool], num_steps: int) -> None:
        """Raises ConfigError as ``CacheStretches.require_reuse``."""
        self._stretches.require_reuse(is_untrained, num_steps)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Installs the cache within the context, empty, and restores the denoisers."""
        with ExitStack() as stack:
            stack.callback(self._patched.clear)
            stack.callback(self._stretches.forget_calls)
            for module, (blocks, patterns) in self._blocks.items():
                stack.enter_context(_restored([module, *blocks]))
                self._patched[module] = self._patch(module, blocks, patterns)
            yield

    def is_on(self, module: nn.Module) -> bool:
        """Whether the cache is installed on a module; it is not on other weights than the current ones."""
        return module in self._patched

    @contextmanager
    def off(self) -> Iterator[None]:
        """Runs the original forwards within the context, and leaves what the cache holds as it is."""
        for module in self._patched:
            del vars(module)["forward"]
        try:
            yield
        finally:
            for module, patched in self._patched.items():
                vars(module)["forward"] = patched.forward

    @contextmanager
    def at(self, module: nn.Module, iteration: int) -> Iterator[list[float]]:
        """Prepares the cache for a call of a denoiser at a step; then the list has the share of parameters that ran."""
        patched = self._patched[module]
        ordinal, is_new_stretch = self._stretches.next_call(module, iteration)
        if is_new_stretch:
            patched.contexts.clear()
        patched.enter(ordinal)
        blocks = [block for part in self._blocks[module][0] for block in part]
        ran: set[nn.Module] = set()
        share: list[float] = []
        handles = [block.register_forward_pre_hook(lambda block, inputs: ran.add(block)) for block in blocks]
        try:
            yield share
        finally:
            for handle in handles:
                handle.remove()
        share.append(share_that_ran(module, [block for block in blocks if block not in ran]))

    def _config_of(self, fields: Mapping[str, Any]) -> Any:
        if unknown := [key for key in fields if key not in FIELDS]:
            raise ConfigError(f"{KEY}: {NAME} has no {', '.join(unknown)}; it has {', '.join(FIELDS)}")
        # calls with and without the prompt have separate contexts here
        return self._library.DBCacheConfig(**fields, enable_separate_cfg=False)

    def _blocks_of(
        self, pipeline: Any, denoisers: Mapping[str, nn.Module]
    ) -> dict[nn.Module, tuple[Sequence[nn.ModuleList], Sequence[Any]]]:
        """The lists of blocks of each denoiser, and the pattern of their arguments and results."""
        kind = type(pipeline).__name__
        try:
            adapter = self._library.BlockAdapterRegister.get_adapter(pipeline, skip_post_init=True)
        except (AssertionError, AttributeError, TypeError) as error:
            raise ConfigError(f"{KEY}: {NAME} does not support {kind}: {error}; remove it") from error
        if adapter is None or adapter.patch_functor is not None or adapter.dummy_blocks_names:
            why = (
                "does not know its blocks" if adapter is None else "replaces code of its blocks, which is not restored"
            )
            raise ConfigError(f"{KEY}: {NAME} does not support {kind}: cache-dit {why}; remove it")
        adapter = self._library.BlockAdapter.normalize(adapter, unique=False)
        blocks = {
            module: (parts, patterns)
            for module, parts, patterns in zip(
                adapter.transformer, adapter.blocks, adapter.forward_pattern, strict=True
            )
        }
        if missing := [name for name, module in denoisers.items() if module not in blocks]:
            raise ConfigError(f"{KEY}: {NAME} does not know the blocks of {', '.join(missing)} of {kind}; remove it")
        return {module: blocks[module] for module in denoisers.values()}

    def _patch(self, module: Any, blocks: Sequence[nn.ModuleList], patterns: Sequence[Any]) -> _Patched:
        from cache_dit.caching.block_adapters import FakeDiffusionPipeline

        try:
            adapter = self._library.BlockAdapter(
                pipe=FakeDiffusionPipeline(),
                transformer=module,
                blocks=list(blocks),
                forward_pattern=list(patterns),
            )
            self._library.enable_cache(adapter, cache_config=copy.deepcopy(self._config))
        except (AssertionError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{KEY}: {NAME} cannot be enabled on {type(module).__name__}: {error}") from error
        manager = module._context_manager
        arguments = {name: manager.get_context(name)._init_kwargs for name in module._context_names}
        return _Patched(vars(module)["forward"], manager, arguments)


@contextmanager
def _restored(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Restores the attributes of modules and the order of their submodules, which cache-dit replaces in a forward."""
    before = [(module, dict(vars(module)), dict(module._modules)) for module in modules]
    try:
        yield
    finally:
        for module, attributes, submodules in before:
            vars(module).clear()
            vars(module).update(attributes)
            module._modules.clear()
            module._modules.update(submodules)


def _imported() -> Any:
    """The library, without its messages of each installation."""
    library = required("cache_dit", f"{KEY}: {NAME}")
    for name in logging.root.manager.loggerDict:
        if name.partition(".")[0] == "cache_dit":
            logging.getLogger(name).setLevel(logging.ERROR)
    return library
