"""Evaluates a policy on fixed prompts and seeds, sampled without noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mmgrpo.config import EvaluationConfig, RunConfig
from mmgrpo.data.prompt_loading import load_prompts_of
from mmgrpo.data.unreadable_rows import prompt_check, require_media, usable_prompts
from mmgrpo.errors import ConfigError, MmgrpoError
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.policy import Policy
from mmgrpo.runs.prompt_samples import PromptSamples, with_preview
from mmgrpo.scoring import NamedReward, Scorer, with_reward_inputs
from mmgrpo.scoring.required_columns import require_rows
from mmgrpo.training.arguments import prompts_of
from mmgrpo.training.build import build_rewards
from mmgrpo.training.held_out_sampling import HeldOutSampler, conversations
from mmgrpo.types import Plan, Prompt, Sample, Scores


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The prompts and rewards of evaluations.

    Attributes:
        prompts: the held-out prompts; empty without an evaluation.
        scorer: calls the held-out rewards.
    """

    prompts: Sequence[Prompt]
    scorer: Scorer

    @classmethod
    def of(cls, config: RunConfig, rewards: Sequence[NamedReward], policy: Policy, prompts: Any = None) -> HeldOut:
        """The section ``evaluation`` of a run.

        Args:
            config: the run.
            rewards: the training rewards, which evaluate where ``evaluation.rewards`` is empty.
            policy: the policy that is evaluated.
            prompts: the held-out prompts, in a form of the trainer's argument; None: those of the section.

        Returns:
            The prompts, loaded, and the rewards.

        Raises:
            ConfigError: a reward cannot be created; or prompts are passed, and the run has no evaluation, or one with a
                source.
            DataError: the prompts cannot be read, or lack a column that the policy or a reward needs.
        """
        evaluation = config.held_out
        section = None if evaluation is None else evaluation.prompts
        functions = build_rewards(evaluation.rewards) if evaluation and evaluation.rewards else rewards
        scorer = Scorer(functions, max_failure_frac=1.0)
        loaded = _loaded(config, prompts)
        if section is not None and section.on_error == "skip":
            loaded = usable_prompts(loaded, "evaluation.prompts", prompt_check(policy))
        require_media(loaded, section, prompt_check(policy))
        require_rows(functions, loaded, "evaluation.prompts")
        return cls(loaded, scorer)


def _loaded(config: RunConfig, prompts: Any) -> list[Prompt]:
    """The held-out prompts that are passed, or else those of the section; empty without both."""
    section = None if config.held_out is None else config.held_out.prompts
    if prompts is None:
        return [] if section is None else load_prompts_of(section, key="evaluation.prompts", note=config.about.note)
    if section is None:
        raise ConfigError(
            "evaluation_prompts have no effect without the section evaluation: {prompts: {}, every: STEPS}"
        )
    if section.source is not None:
        raise ConfigError(f"evaluation_prompts take the place of evaluation.prompts.source={section.source}: pass one")
    return prompts_of(prompts, section)


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The result of an evaluation; complete on the main process only.

    Attributes:
        samples: the requested samples of each prompt; of conversations between roles each turn is one.
        scores: the scores of each reward.
        policy: the policy that sampled them and renders them.
        num_unshown: requested samples without a prompt: the prompt template had no text to insert, or ends the
            conversation.
    """

    samples: Sequence[Sample]
    scores: Scores
    policy: Policy
    num_unshown: int = 0

    def metrics(self) -> dict[str, float]:
        """``eval/NAME/mean`` and ``std`` over the samples each judge applied to; the metrics of explanations; how many
        samples failed, and how many had no prompt."""
        metrics = {}
        if num_failed := sum(not sample.is_scored for sample in self.samples):
            metrics["eval/failed_samples"] = float(num_failed)
        if self.num_unshown:
            metrics["eval/unshown_samples"] = float(self.num_unshown)
        for column, name in enumerate(self.scores.names):
            values = self.scores.value_BR[self.scores.valid_BR[:, column], column]
            if len(values):
                metrics[f"eval/{name}/mean"] = float(values.mean())
                metrics[f"eval/{name}/std"] = float(values.std(correction=0))
            if self.scores.failures.get(name):
                metrics[f"eval/{name}/failed_frac"] = self.scores.failures[name] / len(self.samples)
        return metrics | {f"eval/{name}": value for name, value in self.scores.custom_metrics.items()}

    def rows(self) -> list[tuple[str, ...]]:
        """A line of a table per judge: name, mean, spread, how many samples it applied to and failed on."""
        lines: list[tuple[str, ...]] = []
        for column, name in enumerate(self.scores.names):
            values = self.scores.value_BR[self.scores.valid_BR[:, column], column]
            mean, spread = (f"{values.mean():.4g}", f"{values.std(correction=0):.3g}") if len(values) else ("-", "-")
            lines.append((name, mean, spread, str(len(values)), str(self.scores.failures.get(name, 0))))
        return lines

    def preview(self, limit: int) -> tuple[list[Sample], Scores]:
        """At most ``limit`` samples with their scores, each after those of its conversation; the members of a prompt
        are chosen one after the other, so that every prompt has its share."""
        in_order = conversations(self.samples)
        by_member = sorted(in_order, key=lambda rows: self.samples[rows[0]].member)
        chosen = set([row for rows in by_member for row in rows][:limit])
        rows = [row for rows in in_order for row in rows if row in chosen]
        return [with_preview(self.policy, self.samples[row]) for row in rows], self.scores.rows(rows)


def evaluate(
    policy: Policy,
    prompts: Sequence[Prompt],
    judges: Scorer,
    config: EvaluationConfig,
    sampler: HeldOutSampler,
    *,
    plan: Plan | None = None,
    on_samples: Callable[[Sequence[Sample]], None] | None = None,
) -> EvaluationResult | None:
    """Samples ``samples_per_prompt`` for every prompt, or as many conversations, and calls the rewards once with all of
    them; those that read environments are called in each process with its own.

    Args:
        policy: the policy that samples; its noise is off unless the configuration has it on.
        prompts: the held-out prompts of the job.
        judges: the rewards; an evaluation may continue after their failures.
        config: how many samples, and their seed.
        sampler: samples the prompts.
        plan: whose environment the samples are conversations with; None: there is none.
        on_samples: takes samples as they are generated.

    Returns:
        The evaluation, on the main process; None elsewhere.
    """
    job = sampler.job
    plan = replace(plan or Plan(), stochastic=None if config.sampled else (), on_samples=on_samples)
    plan = with_reward_inputs(plan, judges.rewards)
    group_size, seed = config.samples_per_prompt, derive_seed(config.seed)
    rollouts = sampler(policy, prompts, group_size=group_size, seed=seed, plan=plan)
    samples = rollouts.samples
    local, others = judges.by_place()
    local_scores = job.run_on_leaders(lambda: local(samples) if local and (samples or job.rank == 0) else None)
    all_samples = [sample for part in job.gather(samples) for sample in part]
    if not job.is_main:
        return None
    order = sorted(range(len(all_samples)), key=lambda row: all_samples[row].identity)
    all_samples = [all_samples[row] for row in order]
    parts = [others(all_samples)] if others else []
    if local:
        parts.append(Scores.concat([scores for scores in local_scores if scores is not None]).rows(order))
    return EvaluationResult(all_samples, Scores.joined(judges.names, parts), policy, rollouts.num_unshown)


def sample_prompt(
    policy: Policy,
    prompt: Prompt,
    rewards: Sequence[NamedReward],
    sampler: HeldOutSampler,
    *,
    count: int,
    seed: int,
    noise: bool,
    plan: Plan | None = None,
) -> PromptSamples:
    """Samples one prompt and scores the samples; leaves out a reward that fails, with its error.

    Args:
        policy: the policy.
        prompt: the prompt; one from the command line may lack columns that some rewards need.
        rewards: the rewards.
        sampler: samples the prompt.
        count: number of samples, or of conversations.
        seed: seed of the rollout.
        noise: whether to sample stochastically, as in training.
        plan: the plan whose environment the samples interact with; None: no environment.

    Returns:
        Samples and scores.
    """
    plan = with_reward_inputs(replace(plan or Plan(), stochastic=None if noise else ()), rewards)
    samples = sampler(policy, [prompt], group_size=count, seed=seed, plan=plan).samples
    scores_of_rewards: list[Scores] = []
    unscored: dict[str, str] = {}
    for reward in rewards:
        try:
            scores = Scorer([reward], max_failure_frac=0.0)(samples)
        except MmgrpoError as error:
            unscored[reward.name] = str(error)
            continue
        if bool(scores.valid_BR.any()):
            scores_of_rewards.append(scores)
        else:
            failures = sorted({sample.failure for sample in samples if sample.failure is not None})
            unscored[reward.name] = "; ".join(failures) or "it does not apply to a prompt without its columns"
    previews = [with_preview(policy, sample) for sample in samples]
    return PromptSamples(previews, _concat_rewards(scores_of_rewards, len(samples)), unscored)


def _concat_rewards(parts: Sequence[Scores], count: int) -> Scores:
    """Concatenates the scores of several rewards for the same samples."""
    empty = torch.zeros(count, 0)
    return Scores(
        names=tuple(name for part in parts for name in part.names),
        weight_R=torch.cat([torch.zeros(0), *(part.weight_R for part in parts)]),
        value_BR=torch.cat([empty, *(part.value_BR for part in parts)], dim=1),
        valid_BR=torch.cat([empty.bool(), *(part.valid_BR for part in parts)], dim=1),
        explanations={name: notes for part in parts for name, notes in part.explanations.items()},
        scopes={name: scopes for part in parts for name, scopes in part.scopes.items()},
    )


def probe_rewards(policy: Policy, prompt: Prompt, scorers: Sequence[Scorer]) -> None:
    """Samples twice without noise and calls the rewards, so that failing rewards raise before the run.

    Args:
        policy: the policy that samples.
        prompt: of the run.
        scorers: the rewards.

    Raises:
        RewardError: a reward cannot answer.
    """
    rewards = [reward for scorer in scorers for reward in scorer.rewards]
    plan = with_reward_inputs(Plan(stochastic=(), prompt_ids=(0,)), rewards)
    samples = policy.rollout([prompt], group_size=2, seed=derive_seed(0), plan=plan).samples
    for scorer in scorers:
        scorer.try_out(samples)
