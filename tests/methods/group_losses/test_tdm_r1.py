"""TDM-R1: the losses of its three sets of weights, by the formulas of its authors' code written again; and its runs.

Axes: B rows, T steps of the sampler.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.noised_prediction import NoisedPrediction
from mmgrpo.policies.diffusion.noising import Noised
from mmgrpo.policies.diffusion.renoising import GUIDED, PLAIN, _clean_value_N
from mmgrpo.policies.diffusion.settings import reading_of
from safetensors.torch import load_file
from torch import Tensor

from mmgrpo import Sample, Trainer
from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import find_config, read_layers, validated
from mmgrpo.doctor.examination import examine
from mmgrpo.errors import ConfigError
from mmgrpo.maths.aggregates import count
from mmgrpo.maths.objectives import Objective
from mmgrpo.methods.group_losses.tdm_r1 import clean_distance, clean_shift, step_weight, tdm_r1, tdm_r1_surrogate
from mmgrpo.training.gradients import accumulate_gradient
from mmgrpo.types import OffPolicySample, Plan, Prompt, Rollout, Source
from mmgrpo.values import Value, from_reference, of_view
from tests.forked import on_processes
from tests.maths.decision_rows import decisions_at
from tests.policies.readings import SEED, Hand, draws
from tests.policies.tiny_policies import measured_policy_of

TEXTS = ("a red fox", "two blue squares on a table")
MEMBERS, T, GUIDANCE = (0, 1), 3, 4.5
ADVANTAGE_B = torch.tensor([1.0, -1.0, 0.5, -0.5])
METHOD = read_layers(find_config("methods/tdm-r1"))
SETS = METHOD["update"]["weight_sets"]


def shift3(level: float) -> float:
    """A level in [0, 1] after the schedule's shift of 3."""
    return 3 * level / (1 + 2 * level)


def unshift3(level: float) -> float:
    return level / (3 - 2 * level)


def policy_of_method(**settings: Any) -> DenoisingPolicy:
    """A policy that reads its steps, with a score and a surrogate that differ from the reference."""
    call = {"num_inference_steps": T, "guidance_scale": 1.0}
    return measured_policy_of("sd3", reading=METHOD["policy"]["reading"], call=call, **settings)


def with_sets(policy: DenoisingPolicy, names: Sequence[str], *, size: float = 0.05) -> None:
    """Creates the sets, moved away from the reference."""
    generator = torch.Generator().manual_seed(1)
    for name in names:
        with policy.weights.training(name, restart=True), torch.no_grad():
            for parameter in policy.trainable:
                parameter += size * torch.randn(parameter.shape, generator=generator)


def move(policy: DenoisingPolicy) -> None:
    """Moves the policy away from its reference."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in policy.trainable:
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)


def samples_of(policy: DenoisingPolicy) -> list[OffPolicySample]:
    """Two members of two groups."""
    plan = Plan(stochastic=(), keep_latents=True, for_rescoring=True, prompt_ids=(5, 9), members=(MEMBERS, MEMBERS))
    rollout = policy.rollout([Prompt(text) for text in TEXTS], group_size=2, seed=SEED, plan=plan)
    return [OffPolicySample(sample=sample, source=Source.ON_POLICY) for sample in rollout.samples]


def gradient(policy: DenoisingPolicy, rollout: Rollout, objective: Objective) -> tuple[Tensor, float]:
    """The gradient of the engine on all rows, and the loss."""
    result = accumulate_gradient(
        policy,
        rollout,
        ADVANTAGE_B[:, None].expand(rollout.shape),
        objective,
        rows=range(len(rollout.samples)),
        totals=count(rollout.mask_BT, group_B=rollout.prompt_index_B),
    )
    flat = torch.cat([p.grad.flatten() if p.grad is not None else torch.zeros(p.numel()) for p in policy.trainable])
    for parameter in policy.trainable:
        parameter.grad = None
    return flat, float(sum(result.diagnostics.loss_sums.values()))


def gradient_by_hand(policy: DenoisingPolicy, loss: Tensor) -> Tensor:
    grads = torch.autograd.grad(loss, policy.trainable, allow_unused=True)
    pairs = zip(policy.trainable, grads, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs])


def relative(result: Tensor, expected: Tensor) -> float:
    return float((result - expected).norm() / expected.norm())


def config() -> RunConfig:
    return validated({key: METHOD[key] for key in ("objective", "update")})


class Step:
    """A step of a sample, noised further by the authors' formulas."""

    def __init__(self, sample: Sample, step: int, *, member: int, low: float = 0.0) -> None:
        recorded = sample.sampler_steps
        assert recorded is not None
        assert sample.latent is not None
        levels, states = [*recorded.level_T, recorded.end_level], [*recorded.state_T, sample.latent]
        self.text, self.level, self.next_level = sample.prompt.text, levels[step], levels[step + 1]
        self.state, self.next_state = states[step].float(), states[step + 1].float()
        uniform, self.noise = draws(sample.group, member, step, self.state.shape)
        least = max(low, unshift3(self.next_level)) + 0.02
        self.tau = shift3(least + uniform * (1 - least))
        alpha = (1 - self.tau) / (1 - self.next_level)
        self.beta = (self.tau**2 - (self.next_level * alpha) ** 2) ** 0.5
        self.x_tau = alpha * self.next_state + self.beta * self.noise
        self.alpha = alpha

    def clean(self, hand: Hand, *, guided: bool = False) -> Tensor:
        """x0 in the noised state."""
        return self.x_tau - self.tau * self.velocity(hand, guided=guided)

    def velocity(self, hand: Hand, *, guided: bool = False) -> Tensor:
        conditional = hand.prediction(self.text, self.x_tau, self.tau)
        if not guided:
            return conditional
        unconditional = hand.prediction("", self.x_tau, self.tau)
        return unconditional + GUIDANCE * (conditional - unconditional)


def steps_of_rows(items: Sequence[OffPolicySample], *, shared: bool = False, low: float = 0.0) -> list[list[Step]]:
    return [
        [Step(item.sample, t, member=0 if shared else item.sample.member, low=low) for t in range(T)] for item in items
    ]


@torch.no_grad()
def under(policy: DenoisingPolicy, name: str, step: Step, *, guided: bool = False) -> Tensor:
    with policy.weights.using(name):
        return step.clean(Hand("sd3", policy), guided=guided)


def generator_loss(policy: DenoisingPolicy, items: Sequence[OffPolicySample]) -> Tensor:
    """loss of train_tdmr1_pub.py, with a state of one noise: loss_kl + w loss_cfg_reward + (1 - w) loss_reward."""
    hand, losses = Hand("sd3", policy), []
    for step in (step for row in steps_of_rows(items) for step in row):
        model_x0 = step.state - step.level * hand.prediction(step.text, step.state, step.level)
        real, fake = under(policy, "reference", step), under(policy, "fake", step)
        guided, reward = under(policy, "reference", step, guided=True), under(policy, "surrogate", step, guided=True)
        unconditional = (guided - GUIDANCE * real) / (1 - GUIDANCE)
        target = model_x0.detach()
        of_guided, of_reward = (target - guided).abs().mean(), (target - reward).abs().mean()
        loss_kl = (target + real - fake - model_x0).square().mean() / of_guided
        loss_cfg = (target + 3.5 * (real - unconditional) - model_x0).square().mean() / of_guided
        loss_reward = (target + reward - real - model_x0).square().mean() / of_reward
        losses.append(0.3 * loss_cfg + 0.7 * loss_reward + loss_kl)
    return torch.stack(losses).mean()


def test_generator_gradient_is_that_of_the_authors_code() -> None:
    policy = policy_of_method()
    items = samples_of(policy)
    with_sets(policy, ("fake", "surrogate"))
    move(policy)
    result, loss = gradient(policy, policy.read(items, seed=SEED), Algorithm.of(config()).objective)
    expected = generator_loss(policy, items)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    assert relative(result, gradient_by_hand(policy, expected)) < 1e-5


def revised_x0_loss(student: Tensor, correction: Tensor, normalizer: Tensor) -> Tensor:
    """Flow-Factory's loss of one direction, distribution_matching.py, by the mean over the elements of each sample."""
    scale_N = (student.detach() - normalizer).abs().flatten(1).mean(1).clamp(min=1e-5)
    delta = student - (student.detach() + correction)
    return ((0.5 * delta.square()).flatten(1).mean(1) / scale_N).mean()


def test_generator_gradient_is_twice_that_of_flow_factory_on_random_tensors() -> None:
    """Its squares have a factor of 1 / 2; its guidance is cfg_reward_scale / (s - 1) times guided - conditional."""
    generator = torch.Generator().manual_seed(5)
    shape, sigma = (2 * T, 4, 3, 3), torch.linspace(0.2, 0.9, 2 * T, dtype=torch.float64)[:, None, None, None]
    noisy, output, real, guided, fake, reward = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(6)
    )
    output.requires_grad_()
    noised = Noised(
        state=noisy,
        noisy=noisy,
        target=noisy,
        timestep_N=1000 * sigma.flatten(),
        sigma_N=sigma.flatten(),
        of_noisy=torch.ones_like(sigma),
        of_output=-sigma,
    )
    current = NoisedPrediction(noised=noised, data=noisy, output=output, num_forwards=0, num_rows=2 * T)
    others = {
        ("reference", PLAIN): real,
        ("reference", GUIDED): guided,
        ("fake", PLAIN): fake,
        ("surrogate", GUIDED): reward,
    }
    reading = reading_of(METHOD["policy"]["reading"])
    zero_BT, term = torch.zeros(2, T, dtype=torch.float64), tdm_r1(guidance=0.3)
    values = {value: _clean_value_N(value, current, others, reading).reshape(2, T) for value in term.values}
    decisions = decisions_at(zero_BT, weight_BT=torch.full((2, T), 1 / (2 * T), dtype=torch.float64), values=values)
    loss = term.loss(decisions).value
    student, cfg_reward_scale = noisy - sigma * output, GUIDANCE - 1
    expected = revised_x0_loss(student, real - fake, guided)
    expected = expected + 0.3 * revised_x0_loss(student, cfg_reward_scale / (GUIDANCE - 1) * (guided - real), guided)
    expected = expected + 0.7 * revised_x0_loss(student, reward - real, reward)
    assert float(loss.detach()) == pytest.approx(2 * float(expected.detach()), rel=1e-6)
    (result,) = torch.autograd.grad(loss, output)
    (by_hand,) = torch.autograd.grad(2 * expected, output)
    torch.testing.assert_close(result, by_hand, rtol=1e-6, atol=1e-12)


def test_generator_gradient_does_not_depend_on_the_micro_batch() -> None:
    gradients = []
    for batch in (8, 2, 1):
        policy = policy_of_method(batch=batch)
        items = samples_of(policy)
        with_sets(policy, ("fake", "surrogate"))
        gradients.append(gradient(policy, policy.read(items, seed=SEED), Algorithm.of(config()).objective)[0])
    assert relative(gradients[1], gradients[0]) < 1e-5
    assert relative(gradients[2], gradients[0]) < 1e-5


def test_generator_gradient_is_zero_where_the_sets_are_the_reference() -> None:
    """Also after the policy has moved: real - fake, guidance at a scale of 1, and surrogate - reference are 0."""
    policy = policy_of_method()
    items = samples_of(policy)
    with_sets(policy, ("fake", "surrogate"), size=0.0)
    move(policy)
    plan = Plan(settings={"reading": {"guided_call": {"guidance_scale": 1.0}}})
    result, loss = gradient(policy, policy.read(items, seed=SEED, plan=plan), Algorithm.of(config()).objective)
    assert (float(result.abs().max()), loss) == (0.0, 0.0)


def test_score_gradient_is_that_of_the_authors_code() -> None:
    """loss_fake + 0.02 loss_reg_fake: the target leads from the noised state to the generator's clean sample."""
    policy = policy_of_method()
    move(policy)
    items, hand = samples_of(policy), Hand("sd3", policy)
    steps, losses = [step for row in steps_of_rows(items) for step in row], []
    with torch.no_grad():
        model_x0 = [step.state - step.level * hand.prediction(step.text, step.state, step.level) for step in steps]
        with policy.reference():
            real_v = [step.velocity(hand) for step in steps]
    with_sets(policy, ("fake",))
    with policy.weights.training("fake"):
        rollout = policy.read(items, seed=SEED, plan=Plan(settings={"reading": SETS["fake"]["reading"]}))
        objective = Algorithm.of(config()).weight_sets["fake"].objective
        result, _ = gradient(policy, rollout, objective)
        for step, clean, real in zip(steps, model_x0, real_v, strict=True):
            fake_v = step.velocity(hand)
            target_v = (step.x_tau - clean) / step.tau
            losses.append((target_v - fake_v).square().mean() + 0.02 * (real - fake_v).square().mean())
        assert relative(result, gradient_by_hand(policy, torch.stack(losses).mean())) < 1e-5


Errors = tuple[Tensor, Tensor, Tensor, Tensor]


def surrogate_loss(
    errors: Errors, advantage_B: Tensor, *, beta: float, clip: float, threshold: float, penalty: float
) -> Tensor:
    """dgpo_loss and loss_reg_dgpo of train_tdmr1_pub.py at every step, as if sampled in proportion to its number.

    Groups are pairs of rows.
    """
    dsm_BT, old_BT, ref_BT, distance_BT = errors
    num_steps, loss = dsm_BT.shape[1], torch.zeros((), dtype=dsm_BT.dtype)
    for j in range(num_steps):
        dsm, old, ref, distance = dsm_BT[:, j], old_BT[:, j], ref_BT[:, j], distance_BT[:, j]
        ratio = torch.exp(-dsm + old)
        should_clip = torch.where(advantage_B > 0, ratio > 1 + clip, ratio < 1 - clip)
        stopped = torch.where(should_clip, dsm.detach(), dsm)
        ref_ratio = torch.exp(-stopped + ref)
        too_far = (distance > threshold) & torch.where(advantage_B > 0, ref_ratio > 1, ref_ratio < 1)
        stopped = torch.where(too_far, stopped.detach(), stopped)
        terms = (advantage_B * beta * (stopped.detach() - ref.detach()) / 2).reshape(-1, 2).sum(1)
        weights = torch.sigmoid(terms).repeat_interleave(2)
        dgpo_loss = (weights * advantage_B * stopped).mean()
        probability = (j + 1) / sum(range(1, num_steps + 1))
        loss = loss + probability * (j + 1) / num_steps * (dgpo_loss + penalty * distance.mean())
    return loss


@pytest.mark.parametrize(("clip", "threshold"), [(1e-3, 0.05), (0.05, 0.3), (10.0, 10.0)])
def test_surrogate_gradient_on_random_tensors(clip: float, threshold: float) -> None:
    generator = torch.Generator().manual_seed(4)
    target, old, ref, start = (torch.randn(4, T, 5, generator=generator, dtype=torch.float64) * 0.4 for _ in range(4))
    advantage_B, velocity = torch.tensor([1.2, -0.7, -0.1, 0.3], dtype=torch.float64), start.requires_grad_()

    def mse(first: Tensor, second: Tensor) -> Tensor:
        return (first - second).square().mean(-1)

    errors = mse(target, velocity), mse(target, old), mse(target, ref), mse(velocity, ref)
    expected = surrogate_loss(errors, advantage_B, beta=10.0, clip=clip, threshold=threshold, penalty=0.1)
    decisions = decisions_at(
        -errors[0],
        advantage_BT=advantage_B[:, None].expand(4, T),
        weight_BT=torch.full((4, T), 1 / (4 * T), dtype=torch.float64),
        group_BT=torch.tensor([0, 0, 1, 1])[:, None].expand(4, T),
        values={
            of_view("reference"): -errors[2],
            of_view("slow"): -errors[1],
            from_reference("velocity_mse"): errors[3],
        },
    )
    term = tdm_r1_surrogate(beta=10.0, clip=clip, threshold=threshold, penalty=0.1, slow="slow")
    loss = term.loss(decisions)
    assert float(loss.value.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    (result,) = torch.autograd.grad(loss.value, velocity, retain_graph=True)
    (by_hand,) = torch.autograd.grad(expected, velocity)
    torch.testing.assert_close(result, by_hand, rtol=1e-6, atol=1e-9)
    counted = float(loss.diagnostics.clip_high_count) + float(loss.diagnostics.clip_low_count)
    assert counted == (0 if clip == 10.0 else pytest.approx(6, abs=5))


def test_surrogate_gradient_is_that_of_the_authors_code() -> None:
    policy = policy_of_method()
    items, hand = samples_of(policy), Hand("sd3", policy)
    rows = steps_of_rows(items, shared=True, low=0.125)
    with_sets(policy, ("surrogate", "surrogate_average"))
    numbers = {"beta": 10.0, "clip": 0.1, "threshold": 0.03, "penalty": 1e-3}

    def targets(step: Step) -> Tensor:
        to_noise = (step.tau + step.next_level**2 * step.alpha / (1 - step.next_level)) / step.beta
        return -step.next_state / (1 - step.next_level) + step.noise * to_noise

    def velocities() -> Tensor:
        return torch.stack([torch.stack([step.velocity(hand).flatten() for step in row]) for row in rows])

    target = torch.stack([torch.stack([targets(step).flatten() for step in row]) for row in rows])
    with torch.no_grad(), policy.reference():
        ref = velocities()
    with torch.no_grad(), policy.weights.using("surrogate_average"):
        old = velocities()
    with policy.weights.training("surrogate"):
        rollout = policy.read(items, seed=SEED, plan=Plan(settings={"reading": SETS["surrogate"]["reading"]}))
        objective = (
            Algorithm.of(validated({"objective": METHOD["objective"], "update": with_numbers("surrogate", numbers)}))
            .weight_sets["surrogate"]
            .objective
        )
        result, loss = gradient(policy, rollout, objective)
        now = velocities()

        pairs = (target, now), (target, old), (target, ref), (now, ref)
        errors: Any = tuple((first - second).square().mean(-1) for first, second in pairs)
        expected = surrogate_loss(errors, ADVANTAGE_B, **numbers)
        assert loss == pytest.approx(float(expected.detach()), abs=1e-6)  # errors of both signs cancel
        assert relative(result, gradient_by_hand(policy, expected)) < 1e-4


def with_numbers(name: str, numbers: dict[str, float]) -> dict[str, Any]:
    """The section update with other numbers of the term of a set."""
    section = SETS[name]
    changed = {**section, "terms": [{**section["terms"][0], **numbers}]}
    return {"weight_sets": {**SETS, name: changed}}


def test_levels_and_targets_of_further_noised_states() -> None:
    """By the formulas of the authors' code: uniform between unshift(s) + 0.02 and 1, before the shift by 3."""
    policy = policy_of_method()
    items = samples_of(policy)
    for states, low in (("boundaries", 0.125), ("predictions", 0.0)):
        reading = {"states": states, "low": low}
        rollout = policy.read(items, seed=SEED, plan=Plan(settings={"reading": reading}))
        steps = steps_of_rows(items, low=low)
        expected = torch.tensor([[step.tau for step in row] for row in steps])
        torch.testing.assert_close(rollout.values[Value("level")], expected, rtol=1e-6, atol=1e-7)
        assert bool((expected[:, :-1] > torch.tensor([[row.next_level for row in r[:-1]] for r in steps])).all())


def test_weights_of_steps_by_hand() -> None:
    # 1, 4, 9, 16 over 1 + 2 + 3 + 4
    assert step_weight(torch.zeros(2, 4)).tolist() == [pytest.approx([0.1, 0.4, 0.9, 1.6])]


def test_slow_copy_follows_by_the_published_numbers() -> None:
    average = Algorithm.of(config()).weight_sets["surrogate"].average
    assert average is not None
    assert [average(step) for step in (0, 1, 99, 299, 5000)] == pytest.approx([0.001, 0.002, 0.1, 0.3, 0.3], rel=1e-12)


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (lambda: tdm_r1(guidance=1.5), "guidance shares the reward.*got 1.5"),
        (lambda: tdm_r1_surrogate(beta=0.0), "beta, clip and threshold must be above 0"),
    ],
)
def test_wrong_numbers_are_errors(term: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        term()


def test_values_of_clean_samples_need_the_steps() -> None:
    policy = policy_of_method()
    items = samples_of(policy)
    rows = policy.read(items, seed=SEED, plan=Plan(settings={"reading": {"states": "boundaries"}}))
    with pytest.raises(ConfigError, match=r"clean_distance\(1\)@reference needs .* policy.reading.states: steps"):
        list(policy.evaluate(rows, values=[clean_distance("reference", guided=True)]))
    with pytest.raises(ConfigError, match="a view of stored weights: reference"):
        list(policy.evaluate(policy.read(items, seed=SEED), values=[clean_shift("fake", -1.0, guided=False)]))


def brightness(samples: Sequence[Sample]) -> list[float]:
    return [sum(s.image.convert("L").tobytes()) / 65536 for s in samples if s.image is not None]


def run(output: Path, *, resume: Path | None = None, batch: int = 8, **changes: Any) -> Trainer:
    """A run of the method on the tiny pipeline."""
    values = {
        **{key: METHOD[key] for key in ("advantage", "objective")},
        "rollout": {**METHOD["rollout"], "prompts_per_step": 2, "group_size": 2},
        "update": {**METHOD["update"], "optimizer": {"lr": 1e-3, "eps": 1e-4}},
        "output": str(output),
        "steps": 3,
        "runtime": {"device": "cpu"},
        "checkpoint": {"every": 1, "keep": None},
        **changes,
    }
    prompts = [Prompt(text) for text in TEXTS]
    trainer = Trainer(policy_of_method(batch=batch), {"brightness": brightness}, prompts, values, resume=resume)
    trainer.train()
    return trainer


def stored(trainer: Trainer, step: int) -> dict[str, Tensor]:
    """All weights of a checkpoint, by file and name."""
    folder = trainer.folder.path / "checkpoints" / f"step-{step:06d}" / "policy"
    files = sorted(folder.rglob("*.safetensors"))
    return {f"{path.relative_to(folder)}:{name}": tensor for path in files for name, tensor in load_file(path).items()}


def metrics(trainer: Trainer) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (trainer.folder.path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return run(tmp_path_factory.mktemp("run"))


def test_each_step_trains_the_three_sets(uninterrupted: Trainer) -> None:
    lines, steps = metrics(uninterrupted), [stored(uninterrupted, step) for step in (1, 2, 3)]
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert line["policy/on_policy_gap"] < 1e-9
        assert min(line[f"weight_sets/{name}/grad_norm"] for name in SETS) > 0
        # per step of a sample: the rollout, and reading it; the policy, the score, the reference, and two of each
        # guided prediction; for the score, reading, the score and the reference; for the surrogate, reading, and twice,
        # as groups are weighed first, the surrogate, its slow copy and the reference
        assert line["count/forwards_per_sample"] == pytest.approx(3 * (2 + 7 + 3 + 7))
    assert {line["weight_sets/fake/lr"] for line in lines} == {3e-4}
    # at the first step the copy keeps 0.001 of the reference, and at the next 0.002 of itself
    key = next(key for key in steps[0] if "kept/surrogate/" in key and "lora_B" in key)
    slow = key.replace("kept/surrogate/", "kept/surrogate_average/")
    torch.testing.assert_close(steps[0][slow], 0.999 * steps[0][key], rtol=1e-5, atol=0)
    expected = 0.002 * steps[0][slow] + 0.998 * steps[1][key]
    torch.testing.assert_close(steps[1][slow], expected, rtol=1e-5, atol=1e-10)


def test_resumed_run_is_the_uninterrupted_one(tmp_path: Path, uninterrupted: Trainer) -> None:
    first = run(tmp_path, steps=2)
    resumed = run(tmp_path, resume=first.folder.path, steps=3)
    expected, result = stored(uninterrupted, 3), stored(resumed, 3)
    assert expected.keys() == result.keys()
    assert [key for key in expected if not torch.equal(expected[key], result[key])] == []
    assert metrics(resumed) == metrics(uninterrupted)


def test_doctor_examines_the_method(tmp_path: Path) -> None:
    sections = {key: METHOD[key] for key in ("advantage", "objective", "update")}
    rollout = {**METHOD["rollout"], "prompts_per_step": 2, "group_size": 2}
    values = {**sections, "rollout": rollout, "output": str(tmp_path), "runtime": {"device": "cpu"}}
    prompts = [Prompt(text) for text in TEXTS]
    findings = examine(validated(values), policy_of_method(), {"brightness": brightness}, prompts)
    assert all(finding.ok for finding in findings)
    levels = {finding.check: finding.measured for finding in findings}["levels"]
    assert levels == "each sample scored at 3 noise levels, all trained on"


def two_steps(folder: Path, names: Sequence[str]) -> tuple[int, dict[str, Tensor]]:
    trainer = run(folder, steps=2, batch=1)
    return trainer.job.num_processes, stored(trainer, 2)


def test_two_processes_are_one(tmp_path: Path) -> None:
    num_processes, result = on_processes(
        tmp_path, [], module="tests.methods.group_losses.test_tdm_r1", function="two_steps"
    )
    _, expected = two_steps(tmp_path / "single", [])
    assert num_processes == 2
    for key, tensor in expected.items():
        torch.testing.assert_close(result[key], tensor, rtol=1e-4, atol=1e-7, msg=key)
