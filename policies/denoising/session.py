"""One run of a stock pipeline under our eyes: record, ghost replay, or untouched.

The pipeline is a loop around ``scheduler.step``. A ``Session`` counts its iterations and asks two questions at each:
is the denoiser to run here (or to be passed through as a ghost), and what does ``step`` return. The answers make a
rollout, a replay of one decision, a fork, or a supervised step; none of it knows which pipeline is running.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.utils.outputs import BaseOutput
from torch import Tensor

from mmgrpo.errors import ReplayError
from mmgrpo.policies.denoising.proxies import Memo, ModuleProxy, Shapes, leading_rows


class Stop(BaseException):
    """Ends a pipeline run from within, once what was wanted is known; nothing may catch it by accident."""


@dataclass(frozen=True, slots=True)
class StepCall:
    """One call of ``scheduler.step``.

    Attributes:
        iteration: which denoising iteration it closes; a decision.
        stream: 0 for the pipeline's own scheduler, 1.. for the copies it makes.
        ordinal: position among the step calls of the iteration.
        scheduler: the scheduler that was asked.
        model_output: what the pipeline made of the denoiser's output (guidance included).
        timestep: as the pipeline passed it.
        sample: the state x_t.
        stock: runs the stock class's own step, on this scheduler or on a copy of it.
    """

    iteration: int
    stream: int
    ordinal: int
    scheduler: Any
    model_output: Tensor
    timestep: Any
    sample: Tensor
    stock: Callable[..., Any]


@dataclass
class StepOutput(BaseOutput):
    """What pipelines read off a step."""

    prev_sample: Tensor
    pred_original_sample: Tensor | None = None


class Session:
    """Counts the iterations of one pipeline run and applies the caller's two answers.

    Attributes:
        ghost: whether an iteration's denoiser call is to be answered with zeros.
        on_step: what ``step`` returns; None leaves the stock sampler alone.
        stop_before: the run ends at the first denoiser call of this iteration.
        run_ghosts: run the denoiser in ghost iterations after all, without grad ("full" replay).
        rewrite: edits the denoiser's call before it runs.
    """

    def __init__(
        self,
        *,
        on_step: Callable[[StepCall], Tensor] | None,
        ghost: Callable[[int], bool] = lambda iteration: False,
        stop_before: int | None = None,
        run_ghosts: bool = False,
        rewrite: Callable[[int, Any, Any, Any], tuple[Any, Any]] | None = None,
    ) -> None:
        self.on_step = on_step
        self.ghost = ghost
        self.stop_before = stop_before
        self.run_ghosts = run_ghosts
        self.rewrite = rewrite
        self.iteration = -1
        self.num_forwards = 0
        self.calls_of: dict[str, set[int]] = {}
        self._stepped = True
        self._ordinal = 0
        self._streams = 1

    @property
    def in_loop(self) -> bool:
        """Whether the denoising loop has begun."""
        return self.iteration >= 0

    def new_stream(self) -> int:
        """The number of a further scheduler."""
        self._streams += 1
        return self._streams - 1

    def enter_denoiser(self, name: str) -> None:
        """Opens a new iteration if a step has been taken since the last denoiser call."""
        if self._stepped:
            self.iteration += 1
            self._stepped, self._ordinal = False, 0
            if self.stop_before is not None and self.iteration >= self.stop_before:
                raise Stop
        self.calls_of.setdefault(name, set()).add(self.iteration)

    def leave_step(self) -> None:
        """Notes that a step was taken: the next denoiser call opens a new iteration."""
        self._stepped = True

    def close_step(self, scheduler: Any, arguments: Mapping[str, Any], stock: Callable[..., Any]) -> Tensor:
        """The next state, by ``on_step``."""
        assert self.on_step is not None
        self.leave_step()
        call = StepCall(
            iteration=self.iteration,
            stream=scheduler._mmgrpo_stream,
            ordinal=self._ordinal,
            scheduler=scheduler,
            model_output=arguments["model_output"],
            timestep=arguments["timestep"],
            sample=arguments["sample"],
            stock=stock,
        )
        self._ordinal += 1
        return self.on_step(call)


class Stage:
    """A pipeline fitted with a watching scheduler and proxies, between runs exactly as its owner left it.

    Attributes:
        pipeline: the wrapped pipeline.
        denoisers: names of the components whose calls make the iterations.
    """

    def __init__(self, pipeline: Any, denoisers: tuple[str, ...], memo: Memo) -> None:
        self.pipeline = pipeline
        self.denoisers = denoisers
        self._memo = memo
        self._shapes = Shapes()
        self._session: Session | None = None
        self._substitutes: dict[str, Any] = {}
        self._autocast: torch.dtype | None = None
        self._call = inspect.unwrap(type(pipeline).__call__)
        self._scheduler = self._watching(pipeline.scheduler)

    def autocast(self, dtype: torch.dtype | None) -> None:
        """Runs the denoisers under autocast to ``dtype`` from now on; None runs them as they are."""
        self._autocast = dtype

    @contextmanager
    def substituted(self, modules: Mapping[str, Any]) -> Iterator[None]:
        """Within it other modules answer for the denoisers (a frozen reference)."""
        before, self._substitutes = self._substitutes, dict(modules)
        try:
            yield
        finally:
            self._substitutes = before

    def run(self, session: Session, arguments: Mapping[str, Any], *, seed: int, grad: bool = False) -> Any | None:
        """Runs the pipeline once; returns its output, or None where the session stopped it.

        Random numbers the pipeline draws from the global generator are a function of ``seed`` alone.
        """
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with self._installed(session), torch.set_grad_enabled(grad), torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            try:
                return self._call(self.pipeline, **arguments)
            except Stop:
                return None

    @contextmanager
    def _installed(self, session: Session) -> Iterator[None]:
        before = {name: getattr(self.pipeline, name) for name in self._module_names()}
        replaced: dict[str, Any] = {name: self._proxy(name, module) for name, module in before.items()}
        before["scheduler"], replaced["scheduler"] = self.pipeline.scheduler, self._scheduler
        quiet = getattr(self.pipeline, "_progress_bar_config", None)
        self._session = session
        try:
            self.pipeline.__dict__.update(replaced)
            self.pipeline.set_progress_bar_config(disable=True)
            yield
        finally:
            self._session = None
            self.pipeline.__dict__.update(before)
            self.pipeline.set_progress_bar_config(**(quiet or {}))

    def _module_names(self) -> list[str]:
        return [name for name, part in self.pipeline.components.items() if isinstance(part, torch.nn.Module)]

    def _proxy(self, name: str, module: Any) -> ModuleProxy:
        if name in self.denoisers:
            return ModuleProxy(module, lambda m, args, kwargs: self._denoise(name, m, args, kwargs))
        return ModuleProxy(
            module,
            lambda m, args, kwargs: self._condition(name, m, args, kwargs),
            lambda m, args, kwargs: self._memo(m, m.encode, args, kwargs),
        )

    def _denoise(self, name: str, module: Any, args: Any, kwargs: Any) -> Any:
        session = self._session
        assert session is not None
        session.enter_denoiser(name)
        module = self._substitutes.get(name, module)
        if not session.ghost(session.iteration):
            if session.rewrite is not None:
                args, kwargs = session.rewrite(session.iteration, module, args, kwargs)
            return self._forward(session, module, args, kwargs)
        zeros = None if session.run_ghosts else self._shapes.zeros(module, args, kwargs)
        if zeros is not None:
            return zeros
        with torch.no_grad():
            return self._forward(session, module, args, kwargs)

    def _forward(self, session: Session, module: Any, args: Any, kwargs: Any) -> Any:
        device = next((p.device.type for p in module.parameters()), "cpu")
        with torch.autocast(device, dtype=self._autocast, enabled=self._autocast is not None):
            output = module(*args, **kwargs)
        session.num_forwards += leading_rows(args, kwargs)
        self._shapes.learn(module, args, kwargs, output)
        return output

    def _condition(self, name: str, module: Any, args: Any, kwargs: Any) -> Any:
        session = self._session
        assert session is not None
        if not session.in_loop:
            return self._memo(module, module, args, kwargs)
        session.calls_of.setdefault(name, set()).add(session.iteration)
        return module(*args, **kwargs)

    def _watching(self, scheduler: Any) -> Any:
        """A scheduler of the same class and configuration of which only ``step`` is ours."""
        stock = type(scheduler)
        signature = inspect.signature(stock.step)
        stage = self

        @functools.wraps(stock.step)
        def step(watched: Any, *args: Any, **kwargs: Any) -> Any:
            session = stage._session
            if session is None:
                return stock.step(watched, *args, **kwargs)
            if session.on_step is None:
                session.leave_step()
                return stock.step(watched, *args, **kwargs)
            bound = signature.bind(watched, *args, **kwargs).arguments
            following = session.close_step(watched, bound, lambda twin=watched: stock.step(twin, *args, **kwargs))
            if bound.get("return_dict", True):
                return StepOutput(prev_sample=following, pred_original_sample=following)
            return following, following

        def deepcopy(watched: Any, memo: dict[int, Any]) -> Any:
            twin = copy.copy(watched)
            for key, value in watched.__dict__.items():
                twin.__dict__[key] = copy.deepcopy(value, memo)
            twin._mmgrpo_stream = stage._session.new_stream() if stage._session is not None else 0
            return twin

        watching = type(stock.__name__, (stock,), {"step": step, "__deepcopy__": deepcopy, "_mmgrpo_stream": 0})
        fresh = watching.from_config(scheduler.config)
        if type(fresh).step is not step:
            raise ReplayError(f"{stock.__name__} cannot be watched: its from_config gives another class")
        return fresh


def find_denoisers(pipeline: Any) -> tuple[str, ...]:
    """Names of the components that denoise, by diffusers' naming; else the modules that neither encode nor decode.

    The guess is checked against the calls of the first rollout.

    Raises:
        ReplayError: nothing looks like a denoiser.
    """
    modules = {name: part for name, part in pipeline.components.items() if isinstance(part, torch.nn.Module)}
    named = [name for name in modules if name.rstrip("_0123456789") in NAMED_DENOISERS]
    if named:
        return tuple(named)
    others = [
        name
        for name, part in modules.items()
        if not type(part).__module__.startswith("transformers.") and not callable(getattr(part, "decode", None))
    ]
    if not others:
        raise ReplayError(
            f"{type(pipeline).__name__} has no component that looks like a denoiser among {sorted(modules)}; "
            "name it: denoisers=('transformer',)"
        )
    return tuple(others)


NAMED_DENOISERS = ("transformer", "unet", "unconditional_transformer", "dit")
