"""TRL's ``GRPOTrainer`` over a ``Trainer`` of mmgrpo."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, TrainerState
from transformers.trainer_utils import TrainOutput

from mmgrpo.config import RewardConfig, RunConfig
from mmgrpo.config.loading import validated
from mmgrpo.config.registry import REWARDS
from mmgrpo.config.validating import set_value
from mmgrpo.distributed.accelerator import make_accelerator
from mmgrpo.errors import ConfigError
from mmgrpo.runs.adapter_files import copy_adapters, has_adapters
from mmgrpo.runs.checkpoint import list_checkpoints
from mmgrpo.scoring import NamedReward
from mmgrpo.scoring.named_rewards import function_name
from mmgrpo.scoring.trl_form import TrlReward
from mmgrpo.training.build import build_rewards, exchange_plan
from mmgrpo.training.evaluation import EvaluationResult, HeldOut, evaluate
from mmgrpo.training.trainer import Trainer
from mmgrpo.trl.arguments import GRPOConfig, with_trl_arguments
from mmgrpo.trl.loaded_policy import lora_settings, model_config, policy_of_model
from mmgrpo.trl.log_history import evaluation_means, log_history
from mmgrpo.trl.run_values import (
    TrainingData,
    differences,
    evaluation_values,
    log_interval,
    quantization_settings,
    run_values,
)
from mmgrpo.trl.script_arguments import REPLACEMENTS

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

UNSUPPORTED = ("reward_processing_classes", "callbacks", "rollout_func")
"""Arguments of TRL's constructor that must be None; ``script_arguments`` has their replacements."""


@with_trl_arguments
class GRPOTrainer:
    """TRL's ``GRPOTrainer``: its arguments, reward functions, tools and environments, trained by mmgrpo.

    Attributes:
        args: the arguments.
        trainer: the trainer of mmgrpo.
    """

    def __init__(
        self,
        model: str | PreTrainedModel,
        reward_funcs: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None = None,
        args: GRPOConfig | None = None,
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | None = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: Any = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: Sequence[Callable[..., Any]] | None = None,
        rollout_func: Any = None,
        environment_factory: Callable[[], Any] | Mapping[str, Callable[[], Any]] | None = None,
    ) -> None:
        """Checks all arguments and prepares the run.

        Args:
            model: path, hub id, or a loaded model.
            reward_funcs: functions in TRL's form, names of registered rewards, or paths of reward models.
            args: the arguments; None: the defaults.
            train_dataset: the prompts; None: the environment writes them.
            eval_dataset: the held-out prompts.
            processing_class: tokenizer or processor; None: that of the model.
            reward_processing_classes: not supported.
            callbacks: not supported.
            optimizers: not supported.
            quantization_config: quantizes a model that is loaded from its path, under ``peft_config``.
            peft_config: a ``LoraConfig``; None: all weights are trained.
            tools: functions that the policy may call.
            rollout_func: not supported.
            environment_factory: makes an object for each sample, whose public methods are tools; a mapping has one for
                each value of the column ``environment``.

        Raises:
            ConfigError: an argument is not supported; the message names the replacement.
        """
        refused = {
            "reward_processing_classes": reward_processing_classes,
            "callbacks": callbacks,
            "rollout_func": rollout_func,
        }
        _require_unset(refused, optimizers)
        self.args = args or GRPOConfig()
        _require_dataset("train_dataset", train_dataset)
        data = TrainingData(
            num_prompts=None if train_dataset is None else len(train_dataset),
            is_conversational=train_dataset is None or not isinstance(train_dataset[0].get("prompt"), str),
            has_tools=bool(tools) or environment_factory is not None,
        )
        _require_loading_arguments(model, self.args, quantization_config)
        _require_no_balancing_loss(model_config(model), self.args)
        _require_dataset("eval_dataset", eval_dataset)
        values = {**run_values(self.args, data), **_policy_values(model, peft_config, quantization_config)}
        self._evaluation, self._held_out = evaluation_values(self.args, data), eval_dataset
        if evaluates := self.args.eval_strategy != "no":
            if eval_dataset is None:
                raise ConfigError(f"eval_strategy={self.args.eval_strategy!r} needs eval_dataset")
            values = {**{f"evaluation.{key}": value for key, value in self._evaluation.items()}, **values}
        self._config, self._settings = _config_of(values, model)
        self._log_interval = log_interval(self.args, data)
        for note in differences(self.args, data):
            logger.warning("unlike TRL: %s", note)
        self._accelerator = make_accelerator(self._config)
        self._model, self._processing_class = model, processing_class
        self._last_entry: list[dict[str, float]] = []
        self._arguments = {
            "rewards": _rewards(reward_funcs, self.args, lambda: self.state) or None,
            "prompts": train_dataset,
            "tools": tools,
            "environment_factory": environment_factory,
            "evaluation_prompts": eval_dataset if evaluates else None,
        }
        self.trainer = self._new_trainer(self._new_policy())

    @property
    def model(self) -> PreTrainedModel:
        """The trained model."""
        return self._policy.model

    @property
    def processing_class(self) -> Any:
        """The tokenizer or processor."""
        return self._policy.processor

    @property
    def accelerator(self) -> Any:
        """Accelerate's view of the processes."""
        return self._accelerator

    @property
    def state(self) -> TrainerState:
        """The state of the run, with counts of optimizer updates, as in TRL."""
        updates = self.trainer.config.update.num_updates
        step, total = self.trainer.step, self.trainer.config.steps
        prompts = self._arguments["prompts"]
        per_epoch = 0 if prompts is None else len(prompts) / self.trainer.config.rollout.prompts_per_step
        return TrainerState(
            global_step=step * updates,
            max_steps=total * updates,
            epoch=step / per_epoch if per_epoch else 0.0,
            num_train_epochs=math.ceil(total / per_epoch) if per_epoch else 0,
            log_history=self._log_history(self._log_interval) + self._last_entry,
            is_world_process_zero=self.trainer.job.is_main,
        )

    def train(self, resume_from_checkpoint: str | Path | bool | None = None) -> TrainOutput:
        """Trains to the end, or to the next complete step after Ctrl-C or SIGTERM.

        Args:
            resume_from_checkpoint: a run folder or a checkpoint; True: the newest run in ``output_dir``.

        Returns:
            Number of updates, mean loss, and the metrics of the last update.

        Raises:
            ConfigError: there is no run to resume from.
        """
        if resume_from_checkpoint:
            path = _newest_run(Path(self._config.output)) if resume_from_checkpoint is True else resume_from_checkpoint
            self.trainer = self._new_trainer(self.trainer.policy, resume=path)
        self.trainer.train()
        updates = [line for line in self._log_history(every=1) if "loss" in line]
        mean = sum(line["loss"] for line in updates) / max(len(updates), 1)
        self._last_entry = [{"step": self.state.global_step, "train_loss": mean}]
        return TrainOutput(self.state.global_step, mean, {**(updates[-1] if updates else {}), "train_loss": mean})

    def evaluate(self, eval_dataset: Dataset | None = None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Samples answers to held-out prompts and scores them.

        Args:
            eval_dataset: the prompts; None: those of the trainer.
            metric_key_prefix: begins the names of the metrics.

        Returns:
            The means of the combined reward and of each reward, over the samples that have one.

        Raises:
            ConfigError: there is no ``eval_dataset``.
        """
        _require_dataset("eval_dataset", eval_dataset)
        dataset, trainer = self._held_out if eval_dataset is None else eval_dataset, self.trainer
        if dataset is None:
            raise ConfigError("evaluate() needs eval_dataset")
        config = trainer.config if trainer.config.held_out else _with_evaluation(trainer.config, self._evaluation)
        held_out = HeldOut.of(config, trainer.rewards, trainer.policy, dataset)
        assert config.held_out is not None
        with trainer.job.gathered_for_rollout(config.runtime):
            prompts, scorer, plan = held_out.prompts, held_out.scorer, exchange_plan(config)
            sampler = trainer.held_out_sampler
            result = evaluate(trainer.policy, prompts, scorer, config.held_out, sampler, plan=plan)
        return trainer.job.gather_processes(None if result is None else _means(result, metric_key_prefix))[0] or {}

    def save_model(self, output_dir: str | Path | None = None) -> None:
        """Writes the model, or its adapters in the format of peft, and the tokenizer or processor.

        Args:
            output_dir: the folder; None: ``args.output_dir``.
        """
        target = Path(output_dir or self._config.output)
        partial = target / ".model.part"
        if not (self.trainer.job.is_main or self.trainer.job.is_sharded):
            return
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        self.trainer.policy.save(partial)
        if self.trainer.job.is_main:
            if has_adapters(partial):
                named = self._config.policy
                copy_adapters(partial, target, base=None if named is None else named.settings["model"], revision=None)
            else:
                shutil.copytree(partial / "model", target, dirs_exist_ok=True)
            shutil.rmtree(partial)

    @property
    def _policy(self) -> Any:
        return self.trainer.policy

    def _new_policy(self) -> Any:
        if isinstance(self._model, str) and self._processing_class is None:
            return None  # the trainer loads that of the configuration
        device = self._config.runtime.device or self._accelerator.device
        return policy_of_model(self._model, self._processing_class, self._settings, device=device)

    def _new_trainer(self, policy: Any, resume: str | Path | None = None) -> Trainer:
        return Trainer(policy, config=self._config, accelerator=self._accelerator, resume=resume, **self._arguments)

    def _log_history(self, every: int) -> list[dict[str, float]]:
        if not self.trainer.step:
            return []
        folder = self.trainer.folder
        updates = self.trainer.config.update.num_updates
        return log_history(folder.lines("metrics.jsonl"), folder.lines("evaluation.jsonl"), updates, every)


def _require_unset(arguments: Mapping[str, Any], optimizers: tuple[Any, Any]) -> None:
    if named := [name for name, value in arguments.items() if value]:
        raise ConfigError("; ".join(f"{name} is not supported; instead: {REPLACEMENTS[name]}" for name in named))
    if any(part is not None for part in optimizers):
        raise ConfigError("optimizers are not supported; the optimizer is that of args.optim with the numbers of args")


def _require_dataset(name: str, dataset: Any) -> None:
    if dataset is None:
        return
    if isinstance(dataset, Mapping):
        raise ConfigError(f"{name} must be one dataset, got {', '.join(dataset)}; pass one split")
    if not (hasattr(dataset, "column_names") and hasattr(dataset, "__len__")):
        raise ConfigError(
            f"{name} must be a datasets.Dataset, got {type(dataset).__name__}; make one of it: "
            "Dataset.from_list(list(rows))"
        )
    if not len(dataset):
        raise ConfigError(f"{name} has no rows")


def _require_loading_arguments(model: str | PreTrainedModel, args: GRPOConfig, quantization: Any) -> None:
    """Raises ConfigError if arguments that load a model have no effect on a loaded one, or exclude each other."""
    if isinstance(model, str):
        if quantization is not None and "quantization_config" in (args.model_init_kwargs or {}):
            raise ConfigError("quantization_config is also in args.model_init_kwargs: leave one of them out")
        return
    for name, value in (("model_init_kwargs", args.model_init_kwargs), ("quantization_config", quantization)):
        if value:
            raise ConfigError(f"{name} has no effect on a loaded model: load it with {name}, or pass its path")
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if getattr(args, name) and model.dtype != dtype:
            raise ConfigError(
                f"{name}=True has no effect on a loaded model of {model.dtype}: pass its path, or load it with "
                f"dtype={dtype}"
            )


def _require_no_balancing_loss(config: Any, args: GRPOConfig) -> None:
    coefficient = getattr(config, "router_aux_loss_coef", 0.0)
    if hasattr(config, "output_router_logits") and coefficient and args.router_aux_loss_coef is None:
        raise ConfigError(
            f"TRL adds the load-balancing loss of {config.model_type} with the coefficient {coefficient}; mmgrpo has "
            "no such loss: set router_aux_loss_coef=0.0"
        )


def _policy_values(model: str | PreTrainedModel, peft_config: Any, quantization: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"policy.name": "language"}
    if isinstance(model, str):
        values["policy.model"] = model
    if quantization is not None:
        values["policy.quantization_config"] = quantization_settings(quantization)
    if hasattr(model, "peft_config"):
        raise ConfigError("model has adapters already: pass the base model, and peft_config for new adapters")
    if peft_config is not None:
        values["policy.lora"] = lora_settings(peft_config, model_config(model).model_type)
    return values


def _config_of(values: Mapping[str, Any], model: str | PreTrainedModel) -> tuple[RunConfig, dict[str, Any]]:
    """The configuration, with the section ``policy`` for a model that has a name, and that section."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        set_value(nested, key.split("."), value)
    settings = dict(nested["policy"])
    if not isinstance(model, str):
        del nested["policy"]
    return validated(nested), {name: value for name, value in settings.items() if name != "name"}


def _with_evaluation(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    return validated({**config.model_dump(exclude_unset=True), "evaluation": dict(values)})


def _means(result: EvaluationResult, prefix: str) -> dict[str, float]:
    scores, valid_BR = result.scores, result.scores.valid_BR
    total_B = (scores.value_BR * scores.weight_R * valid_BR).sum(1)[valid_BR.any(1)]
    combined = {f"{prefix}_reward": float(total_B.mean())} if len(total_B) else {}
    return combined | evaluation_means(result.metrics(), prefix)


def _newest_run(output: Path) -> Path:
    runs = [folder for folder in output.glob("*") if folder.is_dir() and list_checkpoints(folder)]
    if not runs:
        raise ConfigError(f"resume_from_checkpoint=True: {output} has no run with a checkpoint")
    return max(runs, key=lambda folder: folder.stat().st_mtime)


def _rewards(reward_funcs: Any, args: GRPOConfig, state: Callable[[], TrainerState]) -> list[NamedReward]:
    """The rewards with their weights. Raises ConfigError for another number of weights, or a loaded reward model."""
    functions = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs] if reward_funcs else []
    weights = [1.0] * len(functions) if args.reward_weights is None else args.reward_weights
    if len(weights) != len(functions):
        raise ConfigError(f"reward_weights has {len(weights)} numbers for {len(functions)} reward functions")
    return [_reward(function, weight, state) for function, weight in zip(functions, weights, strict=True)]


def _reward(function: Any, weight: float, state: Callable[[], TrainerState]) -> NamedReward:
    if isinstance(function, str):
        values = {"name": function} if function in REWARDS else {"name": "reward_model", "model": function}
        label = function.rstrip("/").rpartition("/")[2]
        return build_rewards([RewardConfig.model_validate({**values, "label": label, "weight": weight})])[0]
    if isinstance(function, torch.nn.Module):
        raise ConfigError("a reward model is passed by its path or hub id, or as a function that calls it")
    return NamedReward(function_name(function), TrlReward(function, state), weight=weight)
