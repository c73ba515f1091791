"""One run of a stock pipeline: a recorded rollout, a ghost replay, or an unmodified run.

A pipeline is a loop around ``scheduler.step``. A ``PipelineRun`` counts its iterations and decides two things at each:
whether the denoiser runs (or the iteration is a ghost), and what ``step`` returns. With these two callbacks a run is a
rollout, a replay of one decision, a fork, or a supervised step, independent of the pipeline class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from diffusers.utils.outputs import BaseOutput
from torch import Tensor

from .call_form import RewoundError


class Stop(BaseException):
    """Ends a pipeline run early. A BaseException, so that no ``except Exception`` of a pipeline catches it."""


@dataclass(frozen=True, slots=True)
class StepCall:
    """One call of ``scheduler.step``.

    Attributes:
        iteration: index of the denoising iteration that the call ends; a decision.
        stream: 0 for the pipeline's own scheduler, 1.. for the copies it makes.
        ordinal: position among the step calls of the iteration.
        scheduler: the scheduler whose ``step`` is called.
        model_output: the denoiser's output as the pipeline passes it, guidance included.
        timestep: as the pipeline passes it.
        sample: the state x_t.
        token_timesteps: (B, tokens) if the pipeline gives every token its own timestep.
        clean: the clean sample, if the pipeline already has it.
        takes_clean: whether ``step`` has an argument for it.
        stock: runs the stock class's step, on this scheduler or on a copy of it, with arguments replaced by name.
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
    """The fields that pipelines read from the result of ``step``."""

    prev_sample: Tensor
    pred_original_sample: Tensor | None = None


class PipelineRun:
    """Counts the iterations of one pipeline run and applies the caller's two callbacks.

    Attributes:
        iteration: current iteration, from 0; -1 before the first denoiser call.
        grad: whether the run builds a graph.
        num_forwards: denoiser rows computed; a row of a cached call counts the share of the parameters that ran.
        num_steps: steps taken.
        calls_of: per component, the numbers of steps taken at each of its calls.
        last_state: result of the last step of the stock sampler, if ``on_step`` is None.
        decoded: per decoder call, which entries of its output are finite.
    """

    def __init__(
        self,
        *,
        on_step: Callable[[StepCall], Tensor] | None,
        ghost: Callable[[int], bool] = lambda iteration: False,
        stop_before: int | None = None,
        run_ghosts: bool = False,
        rewrite: Callable[[int, Any, Any, Any], tuple[Any, Any]] | None = None,
        is_untrained: Callable[[int], bool] | None = None,
        intercept: Callable[[int, str, Callable[..., Any], Any, Any], Any | None] | None = None,
        recorder: Callable[[Any, Mapping[str, Any]], None] | None = None,
    ) -> None:
        """A run before its first iteration.

        Args:
            on_step: returns the result of ``step``; None runs the stock sampler.
            ghost: whether an iteration's denoiser call returns zeros.
            stop_before: the run ends at the first denoiser call of this iteration.
            run_ghosts: run the denoiser in ghost iterations too, without grad ("full" replay).
            rewrite: may edit the arguments of every denoiser call, ghost or not: (iteration, module, args, kwargs).
            is_untrained: whether an iteration's denoiser calls may be approximated (``policy.cache``); None: no
                iteration's may.
            intercept: returns the output of a denoiser call, None to make the call: (iteration, component, forward,
                args, kwargs).
            recorder: called before each step of the stock sampler, with the scheduler and the arguments of the step.
        """
        self.on_step = on_step
        self.ghost = ghost
        self.stop_before = stop_before
        self.run_ghosts = run_ghosts
        self.rewrite = rewrite
        self.is_untrained = is_untrained
        self.intercept = intercept
        self.recorder = recorder
        self.iteration = -1
        self.grad = False
        self.num_forwards: float = 0
        self.num_steps = 0
        self.calls_of: dict[str, set[int]] = {}
        self.last_state: Tensor | None = None
        self.decoded: list[Tensor] = []
        self._stepped = True
        self._ordinal = 0
        self._streams = 1

    @property
    def in_loop(self) -> bool:
        """Whether the denoising loop has begun."""
        return self.iteration >= 0

    @property
    def upcoming(self) -> int:
        """The iteration that a call of a module other than the denoiser belongs to."""
        return self.iteration + 1 if self._stepped else self.iteration

    @property
    def looped(self) -> set[str]:
        """The components that are called again after a step: those of the loop."""
        return {name for name, steps in self.calls_of.items() if len(steps) > 1}

    def note_call(self, name: str) -> None:
        """Records a component's call."""
        self.calls_of.setdefault(name, set()).add(self.num_steps)

    def new_stream(self) -> int:
        """The number of a copied scheduler."""
        self._streams += 1
        return self._streams - 1

    def enter_denoiser(self, name: str) -> None:
        """Starts a new iteration if a step was taken since the last denoiser call. Raises Stop at ``stop_before``."""
        if self._stepped:
            self.iteration += 1
            self._stepped, self._ordinal = False, 0
            if self.stop_before is not None and self.iteration >= self.stop_before:
                raise Stop
        self.note_call(name)

    def leave_step(self) -> None:
        """Records a step: the next denoiser call starts a new iteration."""
        self._stepped = True
        self.num_steps += 1

    def note_result(self, scheduler: Any, result: Any) -> None:
        """Records the result of a stock step of the pipeline's own scheduler."""
        if scheduler._mmgrpo_stream == 0:
            self.last_state = result[0] if isinstance(result, tuple) else getattr(result, "prev_sample", None)

    def close_step(self, scheduler: Any, arguments: Mapping[str, Any], stock: Callable[..., Any]) -> Tensor:
        """The next state, from ``on_step``."""
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
