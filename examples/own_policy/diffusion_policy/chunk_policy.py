"""A policy that moves a robot: it denoises a chunk of actions, carries it out, looks, and denoises the next.

Axes: B episodes, T = N K decisions of an episode, N chunks of K denoising steps each, H actions of a chunk, A = 2
numbers of an action, S = 4 numbers of a state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from mmgrpo.policies.weights import Weights
from torch import Tensor, nn

from diffusion_policy import simulator
from diffusion_policy.chunk_settings import ChunkSettings
from diffusion_policy.denoiser import ACTION, Denoiser, kernels, steps
from diffusion_policy.episode_images import episode_image
from diffusion_policy.push_tasks import state_of
from mmgrpo import Evaluation, Example, Noise, Plan, Prompt, Rollout, Sample, SupervisedLoss
from mmgrpo.errors import ConfigError, PolicyError
from mmgrpo.maths.divergences import GAUSSIAN_DIVERGENCES, LOGPROB_DIVERGENCES, Moments
from mmgrpo.maths.gaussian import DENSITIES, REDUCTIONS
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.maths.transitions import kernel_mean, x0_to_prediction
from mmgrpo.policy import SupportsNamedWeights, SupportsPreviews, SupportsSupervisedLoss, SupportsWindows
from mmgrpo.values import OLD, REFERENCE, Value

CHUNKS_PER_DEMONSTRATION = 4  # of each demonstration


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """What scoring the decisions again takes.

    Attributes:
        state_BNS: what was seen before each chunk.
        latent_BNKHA: the K + 1 latents of each chunk, from noise to actions.
        mean_BTHA: mean of each decision under the weights that sampled.
    """

    state_BNS: Tensor
    latent_BNKHA: Tensor
    mean_BTHA: Tensor


class ChunkPolicy(SupportsNamedWeights, SupportsSupervisedLoss, SupportsWindows, SupportsPreviews):
    """Denoises chunks of a robot's actions, conditioned on what it sees."""

    settings_type = ChunkSettings

    def __init__(self, settings: ChunkSettings | Mapping[str, Any] | None = None, *, device: str = "cpu") -> None:
        """A network that has learned nothing.

        Args:
            settings: of the policy.
            device: of the network.

        Raises:
            ValidationError: settings that there are not.
            ConfigError: levels that the sampler cannot take.
        """
        self.settings = settings if isinstance(settings, ChunkSettings) else ChunkSettings(**(settings or {}))
        self.network = Denoiser(self.settings).to(device)
        self.device = torch.device(device)
        self.weights: Weights = Weights({"network": self.network})
        self._steps, self._kernels = steps(self.settings), kernels(self.settings)

    @classmethod
    def from_config(cls, settings: Mapping[str, Any], *, device: str = "cpu") -> ChunkPolicy:
        """The policy that the section ``policy:`` describes."""
        return cls(ChunkSettings(**settings), device=device)

    @property
    def num_decisions(self) -> int:
        """All denoising steps of all chunks."""
        return self.settings.num_decisions

    @torch.no_grad()
    def rollout(self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan | None = None) -> Rollout:
        """Episodes from the prompts' starts; a group's members begin alike and differ in their noise."""
        plan = plan or Plan()
        plan.require_only("stochastic", policy="a policy of chunks")  # noise and simulator are separate
        ids = plan.prompt_ids or tuple(range(len(prompts)))
        members = plan.members_of(len(prompts), group_size)
        rows = [(p, group, m) for p, group, some in zip(prompts, ids, members, strict=True) for m in some]
        stochastic_T = torch.zeros(self.num_decisions, dtype=torch.bool)
        stochastic_T[list(range(self.num_decisions) if plan.stochastic is None else plan.stochastic)] = True
        size, parts, samples = self.settings.rollout_batch, [], []
        for some in (rows[b : b + size] for b in range(0, len(rows), size)):
            episodes, path = self._episodes(some, seed, stochastic_T)
            batch_samples = [Sample(*row, array=array.cpu()) for row, array in zip(some, path, strict=True)]
            plan.emit_samples(batch_samples)
            parts.append(episodes)
            samples += batch_samples
        trace = Episodes(
            **{name: torch.cat([getattr(part, name) for part in parts]) for name in Episodes.__dataclass_fields__}
        )
        B, T = len(rows), self.num_decisions
        old_logprob_BT = torch.cat([self._logprob(trace, trace.mean_BTHA[:, [t]], [t]) for t in range(T)], dim=1)
        return Rollout(
            samples=samples,
            prompt_index_B=torch.tensor([group for _, group, _ in rows]),
            old_logprob_BT=old_logprob_BT.cpu() * stochastic_T,
            mask_BT=stochastic_T.expand(B, T),
            state_BT=torch.arange(B * T).reshape(B, T),  # nothing is shared
            segment_BT=torch.arange(T).div(self.settings.denoising_steps, rounding_mode="floor").expand(B, T),
            trace=trace,
            noise=self._noise(stochastic_T, B),
            num_forwards=B * T,
        )

    def evaluate(
        self, rollout: Rollout, rows: Sequence[int] | Tensor | None = None, *, values: Collection[Value] = ()
    ) -> Iterator[Evaluation]:
        """A slice for each denoising step, of all chunks, and as many episodes as ``update_batch`` says."""
        _require_supported(values)
        rows = torch.arange(len(rollout.samples)) if rows is None else torch.as_tensor(rows)
        K = self.settings.denoising_steps
        for some in rows.split(self.settings.update_batch):
            for k in range(K):
                mask_BN = rollout.mask_BT[some][:, k::K]
                batch_rows, chunks = some[mask_BN.any(1)], mask_BN.any(0).nonzero()[:, 0].tolist()
                if chunks:
                    yield self._slice(rollout.trace, batch_rows, [n * K + k for n in chunks], values)

    def supervised_loss(self, examples: Sequence[Example], *, seeds: Sequence[int]) -> SupervisedLoss:
        """Mean squared error of clean chunks, given chunks of the demonstrations noised at levels of the schedule."""
        H, K = self.settings.chunk_length, self.settings.denoising_steps
        batches: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in range(K)]
        for example, seed in zip(examples, seeds, strict=True):
            if example.array is None:
                raise PolicyError("a demonstration is an Example with an array of (steps, 4 + 2): states and actions")
            generator = torch.Generator().manual_seed(seed)
            for begin in torch.randint(
                len(example.array) - H + 1, (CHUNKS_PER_DEMONSTRATION,), generator=generator
            ).tolist():
                state, action_HA = example.array[begin, :-ACTION], example.array[begin : begin + H, -ACTION:]
                k = int(torch.randint(K, (1,), generator=generator))
                batches[k].append((state, action_HA, torch.randn(H, ACTION, generator=generator)))
        total = torch.zeros((), device=self.device)
        for k, batch in enumerate(batches):
            if batch:
                state_BS, action_BHA, noise_BHA = (
                    torch.stack(tensors).to(self.device) for tensors in zip(*batch, strict=True)
                )
                level = self._steps[k].level
                clean_BHA = self._network(level.alpha * action_BHA + level.sigma * noise_BHA, state_BS, _angle(level))
                total = total + (clean_BHA - action_BHA).square().mean((1, 2)).sum()
        num = len(examples) * CHUNKS_PER_DEMONSTRATION
        return SupervisedLoss(mean=total / num, num_terms=num)

    def preview(self, sample: Sample) -> Sample:
        """With an image of the ways of pusher and block."""
        return sample if sample.array is None else replace(sample, image=episode_image(sample.array))

    @property
    def _network(self) -> nn.Module:
        """The trained network, or the frozen copy that replaces it inside ``weights.using``."""
        return self.weights.active_copies.get("network", self.network)

    def _episodes(
        self, rows: Sequence[tuple[Prompt, int, int]], seed: int, stochastic_T: Tensor
    ) -> tuple[Episodes, Tensor]:
        """Episodes and the states that they went through, (B, N H + 1, S)."""
        N, K, H = self.settings.chunks, self.settings.denoising_steps, self.settings.chunk_length
        noise_BNKHA = torch.stack([_noise_of(derive_seed(seed, g, m), (N, K + 1, H, ACTION)) for _, g, m in rows])
        noise_BNKHA = noise_BNKHA.to(self.device)
        state = torch.stack([state_of(prompt) for prompt, _, _ in rows]).to(self.device)
        path, observations, latents, means = [state], [], [], []
        for n in range(N):
            observations.append(state)
            latents.append([noise_BNKHA[:, n, 0]])
            for k in range(K):
                now = self._moments(latents[n][-1], state, k)
                means.append(now.mean)
                noise_BHA = noise_BNKHA[:, n, k + 1] * bool(stochastic_T[n * K + k])
                latents[n].append(now.mean + now.std * noise_BHA)
            for action_BA in latents[n][-1].unbind(1):
                state = simulator.step(state, action_BA)
                path.append(state)
        latent_BNKHA = torch.stack([torch.stack(chunk, dim=1) for chunk in latents], dim=1)
        trace = Episodes(
            state_BNS=torch.stack(observations, dim=1), latent_BNKHA=latent_BNKHA, mean_BTHA=torch.stack(means, dim=1)
        )
        return trace, torch.stack(path, dim=1)

    def _slice(self, trace: Episodes, rows: Tensor, columns: Sequence[int], values: Collection[Value]) -> Evaluation:
        """Log-probabilities of a denoising step of some chunks of some episodes."""
        K, k = self.settings.denoising_steps, columns[0] % self.settings.denoising_steps
        chunks = [t // K for t in columns]
        some = Episodes(**{name: getattr(trace, name)[rows] for name in Episodes.__dataclass_fields__})
        latent_BHA, state_BS = some.latent_BNKHA[:, chunks, k].flatten(0, 1), some.state_BNS[:, chunks].flatten(0, 1)
        shape = (len(rows), len(columns), *latent_BHA.shape[1:])

        def logprob(moments: Moments) -> Tensor:
            return self._logprob(some, moments.mean.reshape(shape), columns)

        now, divergences = self._moments(latent_BHA, state_BS, k), {}
        others = {OLD: replace(now, mean=some.mean_BTHA[:, columns].flatten(0, 1))}
        for value in values:
            view = value.view or REFERENCE
            if view not in others:
                with torch.no_grad(), self.weights.using(view):
                    others[view] = self._moments(latent_BHA, state_BS, k)
            other = others[view]
            if value.name in LOGPROB_DIVERGENCES:
                divergences[value] = LOGPROB_DIVERGENCES[value.name](logprob(now), logprob(other))
            else:
                divergences[value] = self._reduced(GAUSSIAN_DIVERGENCES[value.name](now, other).reshape(shape))
        return Evaluation(
            columns=columns,
            logprob_BT=logprob(now),
            values=divergences,
            rows=rows,
            num_forwards=len(rows) * len(columns),
        )

    def _moments(self, latent_BHA: Tensor, state_BS: Tensor, k: int) -> Moments:
        """A denoising step as the weights in use see it."""
        step, kernel = self._steps[k], self._kernels[k]
        clean = self._network(latent_BHA, state_BS, _angle(step.level))
        prediction = x0_to_prediction(latent_BHA, clean, step.level)
        velocity = prediction.noise - prediction.x0
        return Moments(mean=kernel_mean(kernel, prediction), velocity=velocity, std=kernel.std, step=step.length)

    def _logprob(self, episodes: Episodes, mean_BTHA: Tensor, columns: Sequence[int]) -> Tensor:
        """Log-probabilities of the sampled actions under the means of some decisions of one denoising step. Shapes: (B,
        T, H, A) -> (B, T)."""
        K, k = self.settings.denoising_steps, columns[0] % self.settings.denoising_steps
        sampled_BTHA = episodes.latent_BNKHA[:, [t // K for t in columns], k + 1]
        return self._reduced(DENSITIES[self.settings.density](sampled_BTHA, mean_BTHA, self._kernels[k].std))

    def _reduced(self, element_BTHA: Tensor) -> Tensor:
        D = element_BTHA.shape[-2] * element_BTHA.shape[-1]
        return REDUCTIONS[self.settings.reduction](element_BTHA.sum((-2, -1)), D)

    def _noise(self, stochastic_T: Tensor, B: int) -> Noise:
        """The step sizes, for methods that weigh by them."""
        N, T = self.settings.chunks, self.num_decisions
        std = torch.tensor([kernel.std for kernel in self._kernels]).repeat(N) * stochastic_T
        length, level = (
            torch.tensor([of(step) for step in self._steps]).repeat(N).expand(B, T)
            for of in (lambda step: step.length, lambda step: step.level.sigma)
        )
        return Noise(std_BT=std.expand(B, T), step_BT=length, level_BT=level)


def _require_supported(values: Collection[Value]) -> None:
    valid_names = {*GAUSSIAN_DIVERGENCES, *LOGPROB_DIVERGENCES}
    if wrong := [
        str(value) for value in values if value.name not in valid_names or value == Value("velocity_mse", OLD)
    ]:
        raise ConfigError(f"chunks have no {', '.join(wrong)}; known are {', '.join(sorted(valid_names))}")


def _noise_of(seed: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _angle(level: Any) -> float:
    """Of a noise level, 0 to pi / 2, from signal to noise."""
    return float(torch.atan2(torch.tensor(level.sigma), torch.tensor(level.alpha)))
