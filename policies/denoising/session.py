"""One run of a stock pipeline under our eyes: record, ghost replay, or untouched.

The pipeline is a loop around ``scheduler.step``. A ``Session`` counts its iterations and asks two questions at each:
is the denoiser to run here (or to be passed through as a ghost), and what does ``step`` return. The answers make a
rollout, a replay of one decision, a fork, or a supervised step; none of it knows which pipeline is running.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.utils.outputs import BaseOutput
from torch import Tensor

from mmgrpo.errors import PolicyError
from mmgrpo.policies.denoising.caches import caches_off
from mmgrpo.policies.denoising.calls import RewoundError, form_of
from mmgrpo.policies.denoising.components import exchanged, held_pipelines, without_no_grad
from mmgrpo.policies.denoising.memo import Memo
from mmgrpo.policies.denoising.proxies import ModuleProxy, Shapes, leading_rows


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
        token_timesteps: (B, tokens) where the pipeline gives every token its own timestep.
        clean: the clean sample, where the pipeline has it already.
        takes_clean: whether ``step`` may be given it.
        stock: runs the stock class's own step, on this scheduler or on a copy of it, with arguments changed by name.
    """

    iteration: int
    stream: int
    ordinal: int
    scheduler: Any
    model_output: Tensor
    timestep: Any
    sample: Tensor
    stock: Callable[..., Any]
    token_timesteps: Tensor | None = None
    clean: Tensor | None = None
    takes_clean: bool = False


@dataclass
class StepOutput(BaseOutput):
    """What pipelines read off a step."""

    prev_sample: Tensor
    pred_original_sample: Tensor | None = None


class Session:
    """Counts the iterations of one pipeline run and applies the caller's two answers.

    Attributes:
        iteration: the one at hand, counted from 0; -1 before the first denoiser call.
        num_forwards: denoiser rows computed.
        num_steps: steps taken.
        calls_of: by component, how many steps had been taken at each of its calls.
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
        """A run that has not begun.

        Args:
            on_step: what ``step`` returns; None leaves the stock sampler alone.
            ghost: whether an iteration's denoiser call is to be answered with zeros.
            stop_before: the run ends at the first denoiser call of this iteration.
            run_ghosts: run the denoiser in ghost iterations after all, without grad ("full" replay).
            rewrite: sees every call of a denoiser, ghost or not, and may edit it: (iteration, module, args, kwargs).
        """
        self.on_step = on_step
        self.ghost = ghost
        self.stop_before = stop_before
        self.run_ghosts = run_ghosts
        self.rewrite = rewrite
        self.iteration = -1
        self.num_forwards = 0
        self.num_steps = 0
        self.calls_of: dict[str, set[int]] = {}
        self._stepped = True
        self._ordinal = 0
        self._streams = 1

    @property
    def in_loop(self) -> bool:
        """Whether the denoising loop has begun."""
        return self.iteration >= 0

    @property
    def upcoming(self) -> int:
        """The iteration that a module other than the denoiser is called for."""
        return self.iteration + 1 if self._stepped else self.iteration

    @property
    def looped(self) -> set[str]:
        """The components called again after a step: those the loop is made of."""
        return {name for name, steps in self.calls_of.items() if len(steps) > 1}

    def note_call(self, name: str) -> None:
        """Writes down when a component is called."""
        self.calls_of.setdefault(name, set()).add(self.num_steps)

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
        self.note_call(name)

    def leave_step(self) -> None:
        """Notes that a step was taken: the next denoiser call opens a new iteration."""
        self._stepped = True
        self.num_steps += 1

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
            token_timesteps=arguments.get("per_token_timesteps"),
            clean=arguments.get("pred_original_sample"),
            takes_clean="pred_original_sample" in inspect.signature(type(scheduler).step).parameters,
        )
        if call.clean is not None and self._ordinal > 0:
            raise RewoundError
        self._ordinal += 1
        return self.on_step(call)


class Stage:
    """A pipeline fitted with a watching scheduler and proxies, between runs exactly as its owner left it.

    Attributes:
        pipeline: the wrapped pipeline.
        denoisers: names of the components whose calls make the iterations.
        form: how rows become the arguments of its call.
        asks_twice: whether it calls ``step`` once for the clean sample and again, with that, to step.
    """

    def __init__(
        self,
        pipeline: Any,
        scheduler: Any,
        decisions: Any,
        denoisers: tuple[str, ...],
        memo: Memo,
        *,
        columns: Sequence[str] = (),
    ) -> None:
        """Fits the pipeline.

        Args:
            pipeline: a stock diffusers pipeline.
            scheduler: what it shall run with where samples are drawn without noise; a copy of it watches.
            decisions: what it shall run with where steps are decisions, the same or another.
            denoisers: names of its components that denoise.
            memo: remembers what its frozen components compute.
            columns: data columns that go to its call.
        """
        self.pipeline = pipeline
        self.denoisers = denoisers
        self.asks_twice = False
        self._memo = memo
        self._shapes = Shapes()
        self._session: Session | None = None
        self._substitutes: dict[str, Any] = {}
        self._autocast: torch.dtype | None = None
        self._verbosity: Callable[[], AbstractContextManager[None]] = nullcontext  # only the first run may warn
        self._looping: set[str] = set()  # components other than the denoisers that are called within the loop
        self._call = inspect.unwrap(type(pipeline).__call__)  # without its no_grad
        self.form = form_of(self._call, columns)
        self._stock_scheduler = pipeline.scheduler
        self._scheduler = self._watching(decisions)
        self._greedy_scheduler = self._scheduler if decisions is scheduler else self._watching(scheduler)

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
        verbosity, self._verbosity = self._verbosity, _quiet
        with verbosity(), self._installed(session), torch.set_grad_enabled(grad), torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            try:
                return self._call(self.pipeline, **arguments)
            except Stop:
                return None

    @contextmanager
    def _installed(self, session: Session) -> Iterator[None]:
        if self.pipeline.__dict__["scheduler"] is not self._stock_scheduler:
            raise PolicyError("the pipeline's scheduler was replaced after the policy was made: wrap the pipeline anew")
        is_greedy = session.on_step is None
        modules = dict(self._modules())
        stand_ins = {id(self._stock_scheduler): self._greedy_scheduler if is_greedy else self._scheduler}
        stand_ins |= {id(module): self._proxy(name, module) for name, module in modules.items()}
        denoisers = [*(modules[name] for name in self.denoisers), *self._substitutes.values()]
        self._session = session
        try:
            with ExitStack() as stack:
                for pipeline in (self.pipeline, *held_pipelines(self.pipeline)):
                    stack.enter_context(exchanged(pipeline, stand_ins))
                for held in held_pipelines(self.pipeline):
                    stack.enter_context(without_no_grad(held))
                if not is_greedy:
                    stack.enter_context(caches_off(denoisers))
                yield
        finally:
            self._session = None

    def _modules(self) -> Iterator[tuple[str, Any]]:
        """The modules by name; one that only a held pipeline knows is named by both."""
        known = dict(self.pipeline.components)
        for held in held_pipelines(self.pipeline):
            here = {id(part) for part in known.values()}
            others = {f"{type(held).__name__}.{name}": part for name, part in held.components.items()}
            known |= {name: part for name, part in others.items() if id(part) not in here}
        yield from ((name, part) for name, part in known.items() if isinstance(part, torch.nn.Module))

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
        if session.rewrite is not None:
            args, kwargs = session.rewrite(session.iteration, module, args, kwargs)

        def forward(*args: Any, **kwargs: Any) -> Any:
            session.num_forwards += leading_rows(args, kwargs)
            device = next((p.device.type for p in module.parameters()), "cpu")
            with torch.autocast(device, dtype=self._autocast, enabled=self._autocast is not None):
                return module(*args, **kwargs)

        return self._answer(session.iteration, name, forward, args, kwargs)

    def _condition(self, name: str, module: Any, args: Any, kwargs: Any) -> Any:
        session = self._session
        assert session is not None
        session.note_call(name)
        if session.in_loop:
            self._looping.add(name)
        if name in self._looping:
            return self._answer(session.upcoming, name, module, args, kwargs)
        return self._memo(module, module, args, kwargs)

    def _answer(self, iteration: int, name: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What a module of the loop gives back: zeros in a ghost iteration, where their shapes are known."""
        session = self._session
        assert session is not None
        is_ghost = session.ghost(iteration)
        zeros = self._shapes.zeros(name, args, kwargs) if is_ghost and not session.run_ghosts else None
        if zeros is not None:
            return zeros
        with torch.set_grad_enabled(torch.is_grad_enabled() and not is_ghost):
            output = forward(*args, **kwargs)
        self._shapes.learn(name, args, kwargs, output)
        return output

    def _watching(self, scheduler: Any) -> Any:
        """A copy of the scheduler, of a class of which only ``step`` is ours."""
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

            def stock_step(twin: Any = watched, **changes: Any) -> Any:
                again = signature.bind(twin, *args, **kwargs)
                again.arguments.update(changes)
                return stock.step(*again.args, **again.kwargs)

            bound = signature.bind(watched, *args, **kwargs).arguments
            if stage.asks_twice and bound.get("pred_original_sample") is None:
                return stock.step(watched, *args, **kwargs)
            following = session.close_step(watched, bound, stock_step)
            if bound.get("return_dict", True):
                return StepOutput(prev_sample=following, pred_original_sample=following)
            return following, following

        def deepcopy(watched: Any, memo: dict[int, Any]) -> Any:
            twin = copy.copy(watched)
            for key, value in watched.__dict__.items():
                twin.__dict__[key] = copy.deepcopy(value, memo)
            twin._mmgrpo_stream = stage._session.new_stream() if stage._session is not None else 0
            return twin

        def scale_model_input(watched: Any, sample: Tensor, timestep: Any = None) -> Tensor:
            return sample

        ours = {"step": step, "__deepcopy__": deepcopy, "_mmgrpo_stream": 0}
        if not callable(getattr(stock, "scale_model_input", None)):
            ours["scale_model_input"] = scale_model_input  # asked for by pipelines that do not know our class
        fresh = copy.deepcopy(scheduler)
        fresh.__class__ = type(stock.__name__, (stock,), ours)
        return fresh


@contextmanager
def _quiet() -> Iterator[None]:
    """Within it diffusers and transformers report errors alone: a run per decision would repeat their every warning."""
    handlers = [handler for name in ("diffusers", "transformers") for handler in logging.getLogger(name).handlers]
    before = [handler.level for handler in handlers]
    for handler in handlers:
        handler.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for handler, level in zip(handlers, before, strict=True):
            handler.setLevel(level)


def require_denoisers(stage: Stage, session: Session) -> None:
    """Raises PolicyError for a run that took no step, or that never called what was taken for the denoiser."""
    if session.num_steps == 0:
        raise PolicyError(
            f"{type(stage.pipeline).__name__} took no step with its scheduler, so there is nothing to train: its call "
            "ended without its loop, or another object steps"
        )
    if session.looped & set(stage.denoisers) or (session.num_steps == 1 and session.in_loop):
        return
    raise PolicyError(
        f"the denoising loop does not call {list(stage.denoisers)} at each step; it calls {sorted(session.looped)}: "
        "name those that denoise in policy.denoisers"
    )
