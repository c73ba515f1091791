"""Pipelines that no library ships: a field of four numbers, denoised by a small network named ``net``."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler
from diffusers.utils.outputs import BaseOutput
from PIL import Image
from torch import Tensor, nn

NUM_STEPS = 4
SIZE = 2  # of the image; its four numbers are the state


class Pictures(BaseOutput):
    """What a call returns."""

    images: list[Image.Image]


class Net(nn.Module):
    """Velocity of a state, at a time, for a code of the prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(SIZE * SIZE + 2, 8)
        self.outer = nn.Linear(8, SIZE * SIZE)

    def forward(self, state: Tensor, time: Tensor, code: Tensor) -> Tensor:
        """(B, 4), (B,), (B,) -> (B, 4)."""
        return self.outer(torch.tanh(self.inner(torch.cat([state, time[:, None], code[:, None]], 1))))


class Guide(nn.Module):
    """A frozen helper that the loop asks at each step, as it would a ControlNet."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE * SIZE, SIZE * SIZE)
        self.num_calls = 0

    def forward(self, state: Tensor) -> Tensor:
        """(B, 4) -> (B, 4)."""
        self.num_calls += 1
        return self.layer(state)


class FieldPipeline(DiffusionPipeline):
    """A plain loop; its subclasses break one rule each."""

    def __init__(self, net: nn.Module, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(net=net, scheduler=scheduler)

    @torch.no_grad()
    def __call__(
        self, prompt: Sequence[str], generator: Sequence[torch.Generator], num_inference_steps: int = NUM_STEPS
    ) -> Pictures:
        """Generates an image per prompt."""
        self.scheduler.set_timesteps(num_inference_steps)
        state = torch.cat([torch.randn(1, SIZE * SIZE, generator=g) for g in generator])
        code = codes(prompt)
        memory: dict[str, Any] = {}
        for timestep in self.scheduler.timesteps:
            time = (timestep / 1000).expand(len(prompt))
            velocity = self.velocity(state, time, code, memory)
            state = self.carried(self.scheduler.step(velocity, timestep, state, return_dict=False)[0])
        return Pictures(images=[_picture(row) for row in state.detach()])

    def velocity(self, state: Tensor, time: Tensor, code: Tensor, memory: dict[str, Any]) -> Tensor:
        """What the loop hands to ``step``; ``memory`` lives as long as the loop."""
        return self.net(state, time, code)

    def carried(self, state: Tensor) -> Tensor:
        """What goes from one step to the next."""
        return state


class MomentumPipeline(FieldPipeline):
    """Mixes what the network said at the step before into what it says now."""

    def velocity(self, state: Tensor, time: Tensor, code: Tensor, memory: dict[str, Any]) -> Tensor:
        """Half of it is older than this step."""
        now = self.net(state, time, code)
        memory["velocity"] = now if "velocity" not in memory else 0.5 * now + 0.5 * memory["velocity"]
        return memory["velocity"]


class RandomPipeline(FieldPipeline):
    """Samples from a generator without a seed."""

    def velocity(self, state: Tensor, time: Tensor, code: Tensor, memory: dict[str, Any]) -> Tensor:
        """Never the same twice."""
        return self.net(state, time, code) * (1 + random.SystemRandom().random())


class DetachedPipeline(FieldPipeline):
    """Denoises without grad, whatever its caller says."""

    def velocity(self, state: Tensor, time: Tensor, code: Tensor, memory: dict[str, Any]) -> Tensor:
        """Cut off from the weights."""
        with torch.no_grad():
            return self.net(state, time, code)


class CastingPipeline(FieldPipeline):
    """Keeps its state in half precision between steps that are taken in float32."""

    def carried(self, state: Tensor) -> Tensor:
        """Rounded."""
        return state.bfloat16().float()


class ScalingPipeline(FieldPipeline):
    """Transforms its state between steps."""

    def carried(self, state: Tensor) -> Tensor:
        """Halved."""
        return 0.5 * state


class PaintingPipeline(FieldPipeline):
    """Overwrites one of the four numbers after each step."""

    def carried(self, state: Tensor) -> Tensor:
        """The last number is 0."""
        return state * torch.tensor([1.0, 1.0, 1.0, 0.0])


class GuidedPipeline(FieldPipeline):
    """Asks a second, frozen module at each step."""

    def __init__(self, net: nn.Module, guide: nn.Module, scheduler: Any) -> None:
        DiffusionPipeline.__init__(self)
        self.register_modules(net=net, guide=guide, scheduler=scheduler)

    def velocity(self, state: Tensor, time: Tensor, code: Tensor, memory: dict[str, Any]) -> Tensor:
        """The network's velocity and the guide's."""
        return self.net(state, time, code) + 0.1 * self.guide(state)


class HookedPipeline(GuidedPipeline):
    """Asks its frozen helper once, before the loop, and reads what passes through a layer of it by a hook."""

    @torch.no_grad()
    def __call__(self, prompt: Sequence[str], generator: Any, num_inference_steps: int = NUM_STEPS) -> Pictures:  # type: ignore[override]
        """Generates an image per prompt."""
        outputs: dict[str, Tensor] = {}
        hook = self.guide.layer.register_forward_hook(lambda layer, args, output: outputs.update(features=output))
        self.guide(codes(prompt)[:, None].expand(-1, SIZE * SIZE))
        hook.remove()
        self.features = outputs["features"]
        return inspect.unwrap(FieldPipeline.__call__)(self, prompt, generator, num_inference_steps)

    def velocity(self, state: Tensor, time: Tensor, code: Tensor, memory: dict[str, Any]) -> Tensor:
        """The network's velocity and what was read off the helper."""
        return self.net(state, time, code) + 0.1 * self.features


class FramesPipeline(FieldPipeline):
    """Steps each half of its state as a separate entry, as video pipelines do with frames."""

    @torch.no_grad()
    def __call__(self, prompt: Sequence[str], generator: Any, num_inference_steps: int = NUM_STEPS) -> Pictures:  # type: ignore[override]
        """Generates an image per prompt."""
        prompt, generator = ([prompt], [generator]) if isinstance(prompt, str) else (prompt, generator)
        self.scheduler.set_timesteps(num_inference_steps)
        state = torch.cat([torch.randn(1, SIZE * SIZE, generator=g) for g in generator])
        for timestep in self.scheduler.timesteps:
            velocity = self.net(state, (timestep / 1000).expand(len(prompt)), codes(prompt))
            halves = self.scheduler.step(velocity.reshape(-1, SIZE), timestep, state.reshape(-1, SIZE)).prev_sample
            state = halves.reshape(-1, SIZE * SIZE)
        return Pictures(images=[_picture(row) for row in state.detach()])


class CustomSchedulerPipeline(FieldPipeline):
    """Brings a custom scheduler, so that diffusers does not count it among the components."""

    def __init__(self, net: nn.Module, scheduler: Any = None) -> None:
        super().__init__(net, scheduler)


class TokensPipeline(FieldPipeline):
    """Keeps integers."""

    def carried(self, state: Tensor) -> Tensor:
        """Rounded."""
        return state.round().long()


class SleepingPipeline(FieldPipeline):
    """Returns before its loop."""

    @torch.no_grad()
    def __call__(self, prompt: Sequence[str], generator: Any, num_inference_steps: int = NUM_STEPS) -> Pictures:  # type: ignore[override]
        """Grey images."""
        return Pictures(images=[_picture(torch.zeros(SIZE * SIZE)) for _ in prompt])


class SingleStringPipeline(FieldPipeline):
    """Takes one prompt and one generator, as they are."""

    @torch.no_grad()
    def __call__(self, prompt: str, generator: torch.Generator, num_inference_steps: int = NUM_STEPS) -> Pictures:  # type: ignore[override]
        """Generates an image."""
        text = prompt.removesuffix("?")  # a list has no such method
        return inspect.unwrap(FieldPipeline.__call__)(self, [text], [generator], num_inference_steps)


class LabeledPipeline(FieldPipeline):
    """Asked by numbers instead of prompts, and shown nothing else."""

    @torch.no_grad()
    def __call__(self, lengths: Sequence[int], generator: Any, num_inference_steps: int = NUM_STEPS) -> Pictures:  # type: ignore[override]
        """Generates an image per number."""
        prompts = ["x" * length for length in lengths]
        return inspect.unwrap(FieldPipeline.__call__)(self, prompts, generator, num_inference_steps)


class Sounds(BaseOutput):
    """The output of a call without images."""

    audios: Tensor


class SoundPipeline(FieldPipeline):
    """Gives its state as sound, two channels of two values."""

    @torch.no_grad()
    def __call__(self, prompt: Sequence[str], generator: Any, num_inference_steps: int = NUM_STEPS) -> Sounds:  # type: ignore[override]
        """Draws a sound per prompt."""
        state: list[Tensor] = []
        self.carried = lambda now: state.append(now) or now  # type: ignore[method-assign]
        inspect.unwrap(FieldPipeline.__call__)(self, prompt, generator, num_inference_steps)
        return Sounds(audios=state[-1].reshape(-1, SIZE, SIZE))


class CombinedPipeline(DiffusionPipeline):
    """Leaves the drawing to a pipeline that it holds."""

    def __init__(self, net: nn.Module, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(net=net, scheduler=scheduler)
        self.inner = FieldPipeline(net=net, scheduler=scheduler)

    @torch.no_grad()
    def __call__(self, prompt: Sequence[str], generator: Any, num_inference_steps: int = NUM_STEPS) -> Pictures:
        """What the held one gives."""
        return self.inner(prompt=prompt, generator=generator, num_inference_steps=num_inference_steps)


def build(kind: Callable[..., FieldPipeline] = FieldPipeline, **parts: nn.Module) -> Any:
    """A pipeline with random weights of a fixed seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(net=Net(), scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), **parts)


def codes(prompt: Sequence[str]) -> Tensor:
    """(B,) a number for each prompt."""
    return torch.tensor([len(text) / 10 for text in prompt])


def _picture(state: Tensor) -> Image.Image:
    levels = (255 * torch.sigmoid(state)).round().to(torch.uint8).reshape(SIZE, SIZE)
    return Image.fromarray(levels.numpy())
