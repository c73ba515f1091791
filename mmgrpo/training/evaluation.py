"""Evaluates a policy on fixed prompts and seeds, sampled without noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mmgrpo.config import EvaluationConfig, RunConfig
from mmgrpo.data.prompt_loading import load_prompts_of
from mmgrpo.data.unreadable_rows import prompt_check, require_media, usable_prompts
from mmgrpo.distributed.job import Job
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.policy import Policy
from mmgrpo.runs.prompt_samples import with_preview
from mmgrpo.scoring import NamedReward, Scorer
from mmgrpo.scoring.required_columns import require_rows
from mmgrpo.training.build import build_rewards
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
    def of(cls, config: RunConfig, rewards: Sequence[NamedReward], policy: Policy) -> HeldOut:
        """The section ``evaluation`` of a run.

        Args:
            config: the run.
            rewards: the training rewards, which evaluate where ``evaluation.rewards`` is empty.
            policy: the policy that is evaluated.

        Returns:
            The prompts, loaded, and the rewards.

        Raises:
            ConfigError: a reward cannot be created.
            DataError: the prompts cannot be read, or lack a column that the policy or a reward needs.
        """
        evaluation = config.held_out
        section = None if evaluation is None else evaluation.prompts
        functions = build_rewards(evaluation.rewards) if evaluation and evaluation.rewards else rewards
        scorer = Scorer(functions, max_failure_frac=1.0)
        prompts = [] if section is None else load_prompts_of(section, key="evaluation.prompts", note=config.about.note)
        if section is not None and section.on_error == "skip":
            prompts = usable_prompts(prompts, "evaluation.prompts", prompt_check(policy))
        require_media(prompts, section, prompt_check(policy))
        require_rows(functions, prompts, "evaluation.prompts")
        return cls(prompts, scorer)


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The result of an evaluation; complete on the main process only.

    Attributes:
        samples: one line per prompt and seed, the same requests in every evaluation.
        scores: the scores of each reward.
        policy: the policy that sampled them and renders them.
    """

    samples: Sequence[Sample]
    scores: Scores
    policy: Policy

    def metrics(self) -> dict[str, float]:
        """``eval/NAME/mean`` and ``std`` over the samples each judge applied to; the metrics of explanations; how many
        samples failed."""
        metrics = {}
        if num_failed := sum(not sample.is_scored for sample in self.samples):
            metrics["eval/failed_samples"] = float(num_failed)
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
        lines = []
        for column, name in enumerate(self.scores.names):
            values = self.scores.value_BR[self.scores.valid_BR[:, column], column]
            mean, spread = (f"{values.mean():.4g}", f"{values.std(correction=0):.3g}") if len(values) else ("-", "-")
            lines.append((name, mean, spread, str(len(values)), str(self.scores.failures.get(name, 0))))
        return lines

    def preview(self, limit: int) -> tuple[list[Sample], Scores]:
        """At most ``limit`` samples with their scores, members taken in turn so that every prompt has its share."""
        in_turn = sorted(range(len(self.samples)), key=lambda row: (self.samples[row].member, self.samples[row].group))
        rows = sorted(in_turn[:limit], key=lambda row: (self.samples[row].group, self.samples[row].member))
        return [with_preview(self.policy, self.samples[row]) for row in rows], self.scores.rows(rows)


def evaluate(
    policy: Policy,
    prompts: Sequence[Prompt],
    judges: Scorer,
    config: EvaluationConfig,
    job: Job,
    *,
    plan: Plan | None = None,
    on_samples: Callable[[Sequence[Sample]], None] | None = None,
    show: Callable[[Sequence[Prompt]], Sequence[Prompt]] | None = None,
) -> EvaluationResult | None:
    """Samples ``samples_per_prompt`` for every prompt and calls the rewards once with all of them; those that read
    environments are called in each process with its own.

    Args:
        policy: the policy that samples; its noise is off unless the configuration has it on.
        prompts: the held-out prompts of the job; each process samples a share of them.
        judges: the rewards; an evaluation may continue after their failures.
        config: how many samples, and their seed.
        job: the processes.
        plan: whose environment the samples are conversations with; None: there is none.
        on_samples: takes samples as they are generated.
        show: the prompts of the policy in place of those that the rewards get; None: the same.

    Returns:
        The evaluation, on the main process; None elsewhere.
    """
    local_prompts = list(enumerate(prompts))[job.rank :: job.size]
    samples: list[Sample] = []
    if local_prompts:
        plan = replace(
            plan or Plan(),
            stochastic=None if config.sampled else (),
            sample_values=judges.needs_values,
            prompt_ids=tuple(index for index, _ in local_prompts),
            on_samples=on_samples,
        )
        prompts_only = [prompt for _, prompt in local_prompts]
        rollout = policy.rollout(
            show(prompts_only) if show else prompts_only,
            group_size=config.samples_per_prompt,
            seed=derive_seed(config.seed),
            plan=plan,
        )
        prompt_of_group = dict(local_prompts)
        samples = [
            replace(sample, prompt=prompt_of_group[sample.group]) if show else sample for sample in rollout.samples
        ]
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
    return EvaluationResult(all_samples, Scores.joined(judges.names, parts), policy)


def probe_rewards(policy: Policy, prompt: Prompt, scorers: Sequence[Scorer]) -> None:
    """Samples twice without noise and calls the rewards, so that failing rewards raise before the run.

    Args:
        policy: the policy that samples.
        prompt: of the run.
        scorers: the rewards.

    Raises:
        RewardError: a reward cannot answer.
    """
    needed = tuple(sorted({name for scorer in scorers for name in scorer.needs_values}))
    plan = Plan(stochastic=(), sample_values=needed, prompt_ids=(0,))
    samples = policy.rollout([prompt], group_size=2, seed=derive_seed(0), plan=plan).samples
    for scorer in scorers:
        scorer.try_out(samples)
