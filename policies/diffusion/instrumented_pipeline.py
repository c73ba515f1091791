"""A stock pipeline with a recording scheduler and module proxies, controlled by a ``PipelineRun``."""

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
from torch.utils._pytree import tree_map_only
from transformers import PreTrainedTokenizerBase

from mmgrpo.errors import PolicyError

from .approximations import Approximation, approximated
from .caches import caches_off
from .call_form import form_of
from .components import components_replaced, nested_pipelines, run_class
from .encoder_cache import EncoderCache, tokenize_unique
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
    """A pipeline with a recording scheduler and proxies during runs; between runs it is unmodified.

    Attributes:
        pipeline: the stock pipeline.
        denoisers: names of the components that the loop calls at each step.
        form: builds the arguments of its call from rows.
        calls_step_twice: whether it calls ``step`` once for the clean sample and again, with it, to take the step.
        approximations: as the argument.
    """

    def __init__(
        self,
        pipeline: Any,
        scheduler: Any,
        decisions: Any,
        denoisers: tuple[str, ...],
        encoder_cache: EncoderCache,
        *,
        copies: Callable[[], Mapping[str, Any]] = dict,
        columns: Sequence[str] = (),
        image_arguments: Mapping[str, str] | None = None,
        decode: DecodeSettings | None = None,
        approximations: Sequence[Approximation] = (),
        records_graph: bool = False,
    ) -> None:
        """Wraps the pipeline.

        Args:
            pipeline: a stock diffusers pipeline.
            scheduler: the scheduler of deterministic samples; a copy of it is instrumented.
            decisions: the scheduler of stochastic steps, the same or another.
            denoisers: names of its denoising components.
            encoder_cache: caches outputs of its frozen components.
            copies: returns the active replacements of denoisers, by component name (a frozen reference).
            columns: data columns that are arguments of its call.
            image_arguments: further arguments of its call, with the data columns that hold their images.
            decode: memory-saving decoding; None: as the pipeline is configured.
            approximations: of the denoisers, for the iterations of a run that may be approximated.
            records_graph: calls denoisers with grad in every run with decisions, so that rollouts and updates run one
                graph of a compiled one.
        """
        self.pipeline = pipeline
        self.denoisers = denoisers
        self.calls_step_twice = False
        self.approximations = approximations
        self._records_graph = records_graph
        self._encoder_cache = encoder_cache
        self._decode = decode or DecodeSettings()
        require_slices(pipeline, self._decode)
        self._decoders = decoders_of(pipeline)
        self._shapes = OutputShapes()
        self._run: PipelineRun | None = None
        self._copies = copies
        self._autocast: torch.dtype | None = None
        self._verbosity: Callable[[], AbstractContextManager[None]] = nullcontext  # only the first run logs warnings
        self._loop_components: set[str] = set()  # components other than the denoisers that the loop calls
        self._call = inspect.unwrap(type(pipeline).__call__)  # without its no_grad
        self.form = form_of(self._call, columns, image_arguments)
        self._stock_scheduler = pipeline.scheduler
        self._scheduler = self._recording(decisions)
        self._greedy_scheduler = self._scheduler if decisions is scheduler else self._recording(scheduler)

    @property
    def joins_iterations(self) -> bool:
        """Whether a denoiser call depends on no other module of the loop, so that calls may be joined."""
        return not (self._loop_components or self.calls_step_twice)

    def autocast(self, dtype: torch.dtype | None) -> None:
        """Sets the autocast dtype of the denoisers; None disables it."""
        self._autocast = dtype

    def run(self, run: PipelineRun, arguments: Mapping[str, Any], *, seed: int, grad: bool = False) -> Any | None:
        """Runs the pipeline once; returns its output, or None if the run stopped early.

        Random numbers that the pipeline samples from the global generator are a function of ``seed``.
        """
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        verbosity, self._verbosity = self._verbosity, _quiet
        run.grad = grad
        with verbosity(), self._installed(run), torch.set_grad_enabled(grad), torch.random.fork_rng(devices):
            _seed(seed)
            try:
                return self._call(self.pipeline, **arguments)
            except Stop:
                return None

    @contextmanager
    def _installed(self, run: PipelineRun) -> Iterator[None]:
        if self.pipeline.__dict__["scheduler"] is not self._stock_scheduler:
            raise PolicyError("the pipeline's scheduler was replaced after the policy was created; create a new policy")
        is_greedy = run.on_step is None
        modules = dict(self._modules())
        substitutes = {id(self._stock_scheduler): self._greedy_scheduler if is_greedy else self._scheduler}
        substitutes |= {id(module): self._proxy(name, module) for name, module in modules.items()}
        substitutes |= {id(part): ModuleProxy(part, tokenize_unique) for part in self._parts(PreTrainedTokenizerBase)}
        for part in vars(self.pipeline).values():
            if isinstance(part, VaeImageProcessor) and type(part).preprocess is VaeImageProcessor.preprocess:
                substitutes[id(part)] = ModuleProxy(part, _call_part, {"preprocess": self._preprocess})
        denoisers = [*(modules[name] for name in self.denoisers), *self._copies().values()]
        self._run = run
        try:
            with ExitStack() as stack:
                for pipeline in (self.pipeline, *nested_pipelines(self.pipeline)):
                    stack.enter_context(components_replaced(pipeline, substitutes))
                    stack.enter_context(run_class(pipeline))
                if not is_greedy:
                    stack.enter_context(caches_off(denoisers))
                for approximation in () if run.is_untrained is None else self.approximations:
                    stack.enter_context(approximation.installed())
                stack.enter_context(sliced(self._decoders, self._decode))
                yield
        finally:
            self._run = None

    def _parts(self, kind: type) -> Iterator[Any]:
        """The components of a kind, of the pipeline and of those within it."""
        for pipeline in (self.pipeline, *nested_pipelines(self.pipeline)):
            yield from (part for part in pipeline.components.values() if isinstance(part, kind))

    def _modules(self) -> Iterator[tuple[str, Any]]:
        """The modules by name; those that only a nested pipeline has are prefixed with its class."""
        components = dict(self.pipeline.components)
        for nested in nested_pipelines(self.pipeline):
            ids = {id(part) for part in components.values()}
            nested_components = {f"{type(nested).__name__}.{name}": part for name, part in nested.components.items()}
            components |= {name: part for name, part in nested_components.items() if id(part) not in ids}
        yield from ((name, part) for name, part in components.items() if isinstance(part, torch.nn.Module))

    def _proxy(self, name: str, module: Any) -> ModuleProxy:
        if name in self.denoisers:
            return ModuleProxy(module, lambda m, args, kwargs: self._denoise(name, m, args, kwargs))
        return ModuleProxy(
            module,
            lambda m, args, kwargs: self._run_component(name, m, args, kwargs),
            {"encode": lambda m, args, kwargs: self._encoder_cache(m, m.encode, *in_dtype_of(m, args, kwargs))}
            | ({"decode": self._decode_latents} if callable(getattr(module, "decode", None)) else {}),
        )

    def _decode_latents(self, decoder: Any, args: Any, kwargs: Any) -> Any:
        """The output of ``decode`` for latents in the decoder's dtype; records which entries are finite."""
        args, kwargs = in_dtype_of(decoder, args, kwargs)
        output = row_by_row(decoder, args, kwargs) if self._decode.rows else decoder.decode(*args, **kwargs)
        if self._run is not None and (finite := finite_entries(output)) is not None:
            self._run.decoded.append(finite)
        return output

    def _preprocess(self, processor: VaeImageProcessor, args: Any, kwargs: Any) -> Any:
        """The processor's tensor of images of one size, each preprocessed once."""
        first, *rest = args or (kwargs.get("image"),)
        keywords = kwargs if args else {key: value for key, value in kwargs.items() if key != "image"}
        images: list[Any] = first if isinstance(first, list) and first else [first]
        if not all(isinstance(image, Image) and image.size == images[0].size for image in images):
            return processor.preprocess(*args, **kwargs)
        return torch.cat(
            [self._encoder_cache(processor, processor.preprocess, (image, *rest), keywords) for image in images]
        )

    def _denoise(self, name: str, module: Any, args: Any, kwargs: Any) -> Any:
        run = self._run
        assert run is not None
        run.enter_denoiser(name)
        module = self._copies().get(name, module)
        if run.on_step is not None and not run.grad and torch.is_grad_enabled():
            raise PolicyError(
                f"{type(self.pipeline).__name__} differentiates through its denoiser within its loop (gradient-based "
                "guidance), which is not supported in training; disable that guidance or use another pipeline"
            )
        if run.rewrite is not None:
            args, kwargs = run.rewrite(run.iteration, module, args, kwargs)

        def forward(*args: Any, **kwargs: Any) -> Any:
            device = next((p.device.type for p in module.parameters()), "cpu")
            with (
                torch.autocast(device, dtype=self._autocast, enabled=self._autocast is not None),
                approximated(self.approximations, run, module) as share,
            ):
                output = module(*args, **kwargs)
            run.num_forwards += leading_rows(args, kwargs) * share[0]
            return output

        output = None if run.intercept is None else run.intercept(run.iteration, name, forward, args, kwargs)
        return self._run_or_zeros(run.iteration, name, forward, args, kwargs) if output is None else output

    def _run_component(self, name: str, module: Any, args: Any, kwargs: Any) -> Any:
        run = self._run
        assert run is not None
        run.note_call(name)
        if run.in_loop:
            self._loop_components.add(name)
        if name in self._loop_components:
            return self._run_or_zeros(run.upcoming, name, module, args, kwargs)
        return self._encoder_cache(module, module, args, kwargs)

    def _run_or_zeros(self, iteration: int, name: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The output of a module of the loop; zeros in a ghost iteration, if their shapes are recorded."""
        run = self._run
        assert run is not None
        is_ghost = run.ghost(iteration)
        zeros = self._shapes.zeros(name, args, kwargs) if is_ghost and not run.run_ghosts else None
        if zeros is not None:
            return zeros
        is_recorded = self._records_graph and run.on_step is not None
        with torch.set_grad_enabled((torch.is_grad_enabled() or is_recorded) and not is_ghost):
            output = forward(*args, **kwargs)
        if is_recorded and not run.grad:
            output = tree_map_only(Tensor, Tensor.detach, output)
        self._shapes.record(name, args, kwargs, output)
        return output

    def _recording(self, scheduler: Any) -> Any:
        """A copy of the scheduler, with a subclass that overrides ``step``."""
        stock = type(scheduler)
        signature = inspect.signature(stock.step)
        instrumented = self

        @functools.wraps(stock.step)
        def step(scheduler_copy: Any, *args: Any, **kwargs: Any) -> Any:
            run = instrumented._run
            if run is None:
                return stock.step(scheduler_copy, *args, **kwargs)
            if run.on_step is None:
                run.leave_step()
                if run.recorder is not None and scheduler_copy._mmgrpo_stream == 0:
                    run.recorder(scheduler_copy, signature.bind(scheduler_copy, *args, **kwargs).arguments)
                result = stock.step(scheduler_copy, *args, **kwargs)
                run.note_result(scheduler_copy, result)
                return result

            def stock_step(twin: Any = scheduler_copy, **changes: Any) -> Any:
                again = signature.bind(twin, *args, **kwargs)
                again.arguments.update(changes)
                return stock.step(*again.args, **again.kwargs)

            bound = signature.bind(scheduler_copy, *args, **kwargs).arguments
            if instrumented.calls_step_twice and bound.get("pred_original_sample") is None:
                return stock.step(scheduler_copy, *args, **kwargs)
            following = run.close_step(scheduler_copy, bound, stock_step)
            if bound.get("return_dict", True):
                return StepOutput(prev_sample=following, pred_original_sample=following)
            return following, following

        def deepcopy(scheduler_copy: Any, memo: dict[int, Any]) -> Any:
            twin = copy.copy(scheduler_copy)
            for key, value in scheduler_copy.__dict__.items():
                twin.__dict__[key] = copy.deepcopy(value, memo)
            twin._mmgrpo_stream = instrumented._run.new_stream() if instrumented._run is not None else 0
            return twin

        def scale_model_input(scheduler_copy: Any, sample: Tensor, timestep: Any = None) -> Tensor:
            return sample

        overrides = {"step": step, "__deepcopy__": deepcopy, "_mmgrpo_stream": 0}
        if not callable(getattr(stock, "scale_model_input", None)):
            overrides["scale_model_input"] = scale_model_input  # some pipelines call it on any scheduler
        recording = copy.deepcopy(scheduler)
        recording.__class__ = type(stock.__name__, (stock,), overrides)
        return recording


def _call_part(part: Any, args: Any, kwargs: Any) -> Any:
    return part(*args, **kwargs)


def _seed(seed: int) -> None:
    """Seeds the global generators; without a GPU, ``torch.manual_seed`` would record the call with its stack."""
    (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(seed)


@contextmanager
def _quiet() -> Iterator[None]:
    """Limits diffusers and transformers to errors within the context: they would repeat warnings in every run."""
    handlers = [handler for name in ("diffusers", "transformers") for handler in logging.getLogger(name).handlers]
    before = [handler.level for handler in handlers]
    for handler in handlers:
        handler.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for handler, level in zip(handlers, before, strict=True):
            handler.setLevel(level)


def require_denoisers(instrumented: InstrumentedPipeline, run: PipelineRun) -> None:
    """Raises PolicyError for a run without steps, or whose loop did not call the denoisers."""
    if run.num_steps == 0:
        raise PolicyError(
            f"{type(instrumented.pipeline).__name__} took no step with its scheduler, so there is nothing to train: "
            "its call ended before its loop, or another object takes the steps"
        )
    if run.looped & set(instrumented.denoisers) or (run.num_steps == 1 and run.in_loop):
        return
    raise PolicyError(
        f"the denoising loop does not call {list(instrumented.denoisers)} at each step; it calls {sorted(run.looped)}: "
        "set policy.denoisers to the components that denoise"
    )
