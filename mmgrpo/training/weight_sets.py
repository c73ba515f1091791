"""The section ``update.weight_sets``: further weights of the policy, trained before its updates at each step.

Inside ``weights.training(name)`` a set is the policy: its updates are those of ``UpdatePlan``, with an objective and an
optimizer for the set. Terms of the policy and of other sets read its values by its name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, final

from torch import nn

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.update import WeightSetConfig, average_name
from mmgrpo.config.validating import policy_settings
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.policy import NamedWeights, Policy, SupportsNamedWeights
from mmgrpo.training.build import build_optimizer
from mmgrpo.training.compute_advantages import Advantages
from mmgrpo.training.loss_scaler import LossScaler
from mmgrpo.training.optimizer import GuardedOptimizer
from mmgrpo.training.request_sampling import reader
from mmgrpo.training.step_metrics import update_metrics
from mmgrpo.training.update_policy import UpdatePlan, update_jointly
from mmgrpo.types import OffPolicySample, Plan, Rollout, Source
from mmgrpo.values import OLD, REFERENCE

WEIGHT_SETS_SEED = 6  # separates the noise of their rows from the random numbers of rollouts, examples and windows
RATIO = "policy/ratio_mean"


@final
class WeightSets:
    """The further weights of a policy, and their optimizers.

    Attributes:
        parameters: of all sets, in their order.
    """

    def __init__(self, algorithm: Algorithm, policy: Policy, job: Job) -> None:
        """Creates the weights and the optimizers; does nothing without the section.

        Args:
            algorithm: of the run.
            policy: the policy, on its device.
            job: the processes.

        Raises:
            ConfigError: the policy cannot have further weights, or no other loss reads a set.
        """
        self._algorithm, self._policy, self._job = algorithm, policy, job
        self._optimizers: dict[str, GuardedOptimizer] = {}
        self.parameters: list[nn.Parameter] = []
        if not algorithm.weight_sets:
            return
        _require_readers(algorithm)
        weights, sections = _weights_of(policy), algorithm.config.update.weight_sets
        for name, weight_set in algorithm.weight_sets.items():
            _require_reading(algorithm, name, sections[name])
            with weights.training(name):
                parameters = policy.trainable
                self.parameters += parameters
                self._optimizers[name] = build_optimizer(
                    parameters,
                    algorithm.config.optimizers[f"update.weight_sets.{name}.optimizer"],
                    num_updates=algorithm.config.steps * sections[name].updates,
                    job=job,
                    scaler=LossScaler.of(policy),
                )
            if weight_set.average is not None:
                weights.store(average_name(name))

    def start(self) -> None:
        """Makes the reference the weights of all sets, and of the copies that follow them, before the first step."""
        create_weight_sets(self._algorithm, self._policy)

    def update(
        self,
        algorithm: Algorithm,
        advantages: Advantages,
        step: int,
        metrics: dict[str, Any],
        before_apply: Callable[[], None],
    ) -> Advantages:
        """Takes the updates of all sets at a step.

        Args:
            algorithm: at the step.
            advantages: its training data.
            step: counted from 0.
            metrics: of the step; those of the sets are added.
            before_apply: called before weights move.

        Returns:
            The training data, its forwards counted with those that this took.
        """
        if not algorithm.weight_sets:
            return advantages
        clock, num_forwards, weights = time.perf_counter(), advantages.rollout.num_forwards, _weights_of(self._policy)
        for index, (name, weight_set) in enumerate(algorithm.weight_sets.items()):
            with weights.training(name):
                for number in range(algorithm.config.update.weight_sets[name].updates):
                    seed = derive_seed(algorithm.config.seed, WEIGHT_SETS_SEED, step, index, number)
                    rows = replace(advantages, rollout=self._rows(algorithm, name, advantages.rollout, seed), views={})
                    plan = UpdatePlan(
                        self._policy, rows, weight_set.objective, job=self._job, before_apply=(before_apply,)
                    )
                    num_forwards += rows.rollout.num_forwards
                    for (update,) in update_jointly([plan], self._optimizers[name], epochs=1, minibatches=1):
                        num_forwards += update.gradient.num_forwards
                        metrics |= _metrics(name, update_metrics(update, self._job))
                if weight_set.average is not None:
                    weights.store(average_name(name), decay=weight_set.average(step))
        metrics["time/weight_sets_s"] = time.perf_counter() - clock
        return replace(advantages, rollout=replace(advantages.rollout, num_forwards=num_forwards))

    def state_dict(self) -> dict[str, Any]:
        """The optimizers; the weights are saved with the policy's. Raises NonFiniteError for infinite weights."""
        for optimizer in self._optimizers.values():
            optimizer.require_finite_weights()
        return {name: optimizer.state_dict() for name, optimizer in self._optimizers.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores ``state_dict``. Raises KeyError for a run with other sets."""
        for name, optimizer in self._optimizers.items():
            optimizer.load_state_dict(state[name])

    def _rows(self, algorithm: Algorithm, name: str, rollout: Rollout, seed: int) -> Rollout:
        """The decisions of a set's update: those of the rollout, or its samples renoised for the set."""
        if algorithm.config.rollout.training_states == "sampled":
            return replace(rollout.aged(), num_forwards=0)
        sources = [Source.ON_POLICY] * len(rollout.samples) if rollout.source_B is None else rollout.source_B.tolist()
        samples = [
            OffPolicySample(sample=sample, source=Source(source))
            for sample, source in zip(rollout.samples, sources, strict=True)
        ]
        settings, section = algorithm.step_config.sampling_settings, algorithm.config.update.weight_sets[name]
        plan = Plan(
            values=tuple(sorted(algorithm.weight_sets[name].objective.values, key=str)),
            settings={**settings, "reading": {**settings.get("reading", {}), **section.reading}},
        )
        renoised = reader(self._policy).read(samples, seed=seed, plan=plan)
        if renoised.shape != rollout.shape:
            raise ConfigError(
                f"update.weight_sets.{name}.reading gives {renoised.shape[1]} decisions a sample, and policy.reading "
                f"{rollout.shape[1]}: set as many"
            )
        return replace(renoised, samples=rollout.samples).keep(rollout.mask_BT)


def create_weight_sets(algorithm: Algorithm, policy: Policy) -> None:
    """Makes the reference the weights of all sets, and of the copies that follow them.

    Args:
        algorithm: of the run.
        policy: the policy, before its first step.

    Raises:
        ConfigError: the policy cannot have further weights.
    """
    for name, weight_set in algorithm.weight_sets.items():
        weights = _weights_of(policy)
        with weights.training(name, restart=True):
            if weight_set.average is not None:
                weights.store(average_name(name))


def _metrics(name: str, measured: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a set's update: its losses, the means of the values that its terms read, and its optimizer."""
    reported = {
        key: number
        for key, number in measured.items()
        if key.startswith(("policy/loss", "optimizer/")) or (key.endswith("_mean") and key != RATIO)
    }
    return {f"weight_sets/{name}/{key.partition('/')[2]}": number for key, number in reported.items()}


def _weights_of(policy: Policy) -> NamedWeights:
    if not isinstance(policy, SupportsNamedWeights):
        raise ConfigError(
            f"update.weight_sets: {type(policy).__name__} keeps no weights under names, so no further ones can be "
            "trained: remove it, or give the policy the attribute weights (mmgrpo.policy.SupportsNamedWeights)"
        )
    return policy.weights


def _require_reading(algorithm: Algorithm, name: str, section: WeightSetConfig) -> None:
    """Raises ConfigError for settings of a reading that the policy does not have, or that nothing reads."""
    config = algorithm.config
    if section.reading and config.rollout.training_states != "renoised":
        raise ConfigError(
            f"update.weight_sets.{name}.reading is for rollout.training_states: renoised: leave it out, or set that"
        )
    if section.reading and config.policy is not None:
        reading = {**config.policy.settings.get("reading", {}), **section.reading}
        policy_settings(config.policy.model_copy(update={"reading": reading}))


def _require_readers(algorithm: Algorithm) -> None:
    """Raises ConfigError for weights that no loss of others reads, and for views that are no weights of the run."""
    read = {name: part.objective.views for name, part in algorithm.weight_sets.items()}
    averages = [average_name(name) for name, part in algorithm.weight_sets.items() if part.average is not None]
    stored = {REFERENCE, OLD, *algorithm.weight_sets, *averages}
    for name, views in read.items():
        if unknown := sorted(views - stored):
            raise ConfigError(
                f"update.weight_sets.{name}.terms reads {', '.join(unknown)}; terms of a weight set read the weights "
                f"{', '.join(sorted(stored))}"
            )
    of_policy: Collection[str] = algorithm.views_read()
    for name in (*algorithm.weight_sets, *averages):
        if name not in {*of_policy, *(view for other, views in read.items() if other != name for view in views)}:
            raise ConfigError(
                f"update.weight_sets: no other loss reads the weights {name!r}: name them in a term, or remove them"
            )
