"""A stock pipeline fitted for our runs: a watching scheduler and proxies, which a ``Session`` tells what to do."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from diffusers.image_processor import VaeImageProcessor
from PIL.Image import Image
from torch import Tensor

from mmgrpo.errors import PolicyError

from .caches import caches_off
from .call_form import form_of
from .components import components_replaced, nested_pipelines, without_no_grad
from .encoder_cache import EncoderCache
from .latent_decoding import (
    decoders_of,
    finite_entries,
    in_dtype_of,
    require_slices,
    row_by_row,
    sliced,
)
from .pipeline_run import PipelineRun, StepOutput, Stop
from .proxies import ModuleProxy, OutputShapes, leading_rows
from .settings import DecodeSettings


class InstrumentedPipeline:
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
        memo: EncoderCache,
        *,
        copies: Callable[[], Mapping[str, Any]] = dict,
        columns: Sequence[str] = (),
        pictures: Mapping[str, str] | None = None,
        decode: DecodeSettings | None = None,
    ) -> None:
        """Fits the pipeline.

        Args:
            pipeline: a stock diffusers pipeline.
            scheduler: what it shall run with where samples are drawn without noise; a copy of it watches.
            decisions: what it shall run with where steps are decisions, the same or another.
            denoisers: names of its components that denoise.
            memo: remembers what its frozen components compute.
            copies: returns the modules to call in place of denoisers now, by component name (a frozen reference).
            columns: data columns that go to its call.
            pictures: arguments of its call, with the data columns that hold their pictures.
            decode: how what it draws is decoded; None: as its owner has it.
        """
        self.pipeline = pipeline
        self.denoisers = denoisers
        self.asks_twice = False
        self._memo = memo
        self._decode = decode or DecodeSettings()
        require_slices(pipeline, self._decode)
        self._decoders = decoders_of(pipeline)
        self._shapes = OutputShapes()
        self._session: PipelineRun | None = None
        self._copies = copies
        self._autocast: torch.dtype | None = None
        self._verbosity: Callable[[], AbstractContextManager[None]] = nullcontext  # only the first run may warn
        self._looping: set[str] = set()  # components other than the denoisers that are called within the loop
        self._call = inspect.unwrap(type(pipeline).__call__)  # without its no_grad
        self.form = form_of(self._call, columns, pictures)
        self._stock_scheduler = pipeline.scheduler
        self._scheduler = self._watching(decisions)
        self._greedy_scheduler = self._scheduler if decisions is scheduler else self._watching(scheduler)

    def autocast(self, dtype: torch.dtype | None) -> None:
        """Runs the denoisers under autocast to ``dtype`` from now on; None runs them as they are."""
        self._autocast = dtype

    def run(self, session: PipelineRun, arguments: Mapping[str, Any], *, seed: int, grad: bool = False) -> Any | None:
        """Runs the pipeline once; returns its output, or None where the session stopped it.

        Random numbers the pipeline draws from the global generator are a function of ``seed`` alone.
        """
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        verbosity, self._verbosity = self._verbosity, _quiet
        session.grad = grad
        with verbosity(), self._installed(session), torch.set_grad_enabled(grad), torch.random.fork_rng(devices):
            _seed(seed)
            try:
                return self._call(self.pipeline, **arguments)
            except Stop:
                return None

    @contextmanager
    def _installed(self, session: PipelineRun) -> Iterator[None]:
        if self.pipeline.__dict__["scheduler"] is not self._stock_scheduler:
            raise PolicyError("the pipeline's scheduler was replaced after the policy was made: wrap the pipeline anew")
        is_greedy = session.on_step is None
        modules = dict(self._modules())
        stand_ins = {id(self._stock_scheduler): self._greedy_scheduler if is_greedy else self._scheduler}
        stand_ins |= {id(module): self._proxy(name, module) for name, module in modules.items()}
        for part in vars(self.pipeline).values():
            if isinstance(part, VaeImageProcessor) and type(part).preprocess is VaeImageProcessor.preprocess:
                stand_ins[id(part)] = ModuleProxy(part, _called, {"preprocess": self._pixels})
        denoisers = [*(modules[name] for name in self.denoisers), *self._copies().values()]
        self._session = session
        try:
            with ExitStack() as stack:
                for pipeline in (self.pipeline, *nested_pipelines(self.pipeline)):
                    stack.enter_context(components_replaced(pipeline, stand_ins))
                for held in nested_pipelines(self.pipeline):
                    stack.enter_context(without_no_grad(held))
                if not is_greedy:
                    stack.enter_context(caches_off(denoisers))
                stack.enter_context(sliced(self._decoders, self._decode))
                yield
        finally:
            self._session = None

    def _modules(self) -> Iterator[tuple[str, Any]]:
        """The modules by name; one that only a held pipeline knows is named by both."""
        known = dict(self.pipeline.components)
        for held in nested_pipelines(self.pipeline):
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
            {"encode": lambda m, args, kwargs: self._memo(m, m.encode, *in_dtype_of(m, args, kwargs))}
            | ({"decode": self._decoded} if callable(getattr(module, "decode", None)) else {}),
        )

    def _decoded(self, decoder: Any, args: Any, kwargs: Any) -> Any:
        """What ``decode`` gives of latents in the decoder's dtype; the session notes which entries are finite."""
        args, kwargs = in_dtype_of(decoder, args, kwargs)
        output = row_by_row(decoder, args, kwargs) if self._decode.rows else decoder.decode(*args, **kwargs)
        if self._session is not None and (finite := finite_entries(output)) is not None:
            self._session.decoded.append(finite)
        return output

    def _pixels(self, processor: VaeImageProcessor, args: Any, kwargs: Any) -> Any:
        """What the processor makes of pictures, one by one and each once; they are of one size."""
        first, *rest = args or (kwargs.get("image"),)
        named = kwargs if args else {key: value for key, value in kwargs.items() if key != "image"}
        pictures: list[Any] = first if isinstance(first, list) and first else [first]
        if not all(isinstance(picture, Image) and picture.size == pictures[0].size for picture in pictures):
            return processor.preprocess(*args, **kwargs)
        return torch.cat([self._memo(processor, processor.preprocess, (one, *rest), named) for one in pictures])

    def _denoise(self, name: str, module: Any, args: Any, kwargs: Any) -> Any:
        session = self._session
        assert session is not None
        session.enter_denoiser(name)
        module = self._copies().get(name, module)
        if session.on_step is not None and not session.grad and torch.is_grad_enabled():
            raise PolicyError(
                f"{type(self.pipeline).__name__} differentiates through its denoiser within its loop, so that its "
                "states hang on the weights by gradients: such guidance is not trained through; switch it off, or use "
                "a pipeline without it"
            )
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
                result = stock.step(watched, *args, **kwargs)
                session.note_result(watched, result)
                return result

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


def _called(part: Any, args: Any, kwargs: Any) -> Any:
    return part(*args, **kwargs)


def _seed(seed: int) -> None:
    """Seeds the global generators; where there is no GPU, ``torch.manual_seed`` would note the call, stack and all."""
    (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(seed)


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


def require_denoisers(stage: InstrumentedPipeline, session: PipelineRun) -> None:
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
