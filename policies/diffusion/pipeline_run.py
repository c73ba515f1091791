"""One run of a stock pipeline under our eyes: record, ghost replay, or untouched.

The pipeline is a loop around ``scheduler.step``. A ``Session`` counts its iterations and asks two questions at each:
is the denoiser to run here (or to be passed through as a ghost), and what does ``step`` return. The answers make a
rollout, a replay of one decision, a fork, or a supervised step; none of it knows which pipeline is running.
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


class PipelineRun:
    """Counts the iterations of one pipeline run and applies the caller's two answers.

    Attributes:
        iteration: the one at hand, counted from 0; -1 before the first denoiser call.
        grad: whether the run carries a graph.
        num_forwards: denoiser rows computed.
        num_steps: steps taken.
        calls_of: by component, how many steps had been taken at each of its calls.
        last_state: what the last step of the stock sampler returned, where it was left alone.
        decoded: of each call of a decoder, which entries of its output are finite.
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
        self.grad = False
        self.num_forwards = 0
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

    def note_result(self, scheduler: Any, result: Any) -> None:
        """Notes what a step of the stock sampler returned, of the pipeline's own scheduler."""
        if scheduler._mmgrpo_stream == 0:
            self.last_state = result[0] if isinstance(result, tuple) else getattr(result, "prev_sample", None)

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
