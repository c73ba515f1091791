"""Alerts on series made by hand, and on a run whose reward can be hacked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmgrpo import Trainer
from mmgrpo.config import EvaluationRewardConfig, RunConfig, WatchdogConfig
from mmgrpo.config.loading import load_config, validated
from mmgrpo.errors import ConfigError
from mmgrpo.explain.explanation import explanation
from mmgrpo.runs.alerts import Alert, Watchdog, WatchdogInputs, first_step_notes, watchdog_inputs
from mmgrpo.runs.sample_files import box_metrics, diversity_metrics
from mmgrpo.scoring import NamedReward, score
from mmgrpo.types import Prompt, Sample, Score
from tests.policies.letters import letters


def run_of(**limits: Any) -> RunConfig:
    settings = {key: limits.pop(key) for key in ("stop", "window", "held_out") if key in limits}
    alerts = [{"name": name, "limit": limit} for name, limit in limits.items()]
    watchdog = {"window": 2, "alerts": alerts, **settings}
    return validated({"evaluation": {"prompts": {"source": "x.txt"}, "watchdog": watchdog}})


def test_first_step_without_a_gradient_is_noted() -> None:
    line = {"optimizer/grad_norm": 0.0, "reward/std": 0.3, "policy/on_policy_gap": 0.01}
    (note,) = first_step_notes(line, 0.02)
    assert note.startswith("the gradient of the first step is 0, although rewards differ: no weight is trained")
    assert list(first_step_notes({**line, "reward/std": 0.0}, 0.02)) == []
    equal = {**line, "reward/std": 0.0, "groups/zero_std_frac": 1.0, "credit/loo/changed_frac": 0.0}
    (note,) = first_step_notes(equal, 0.02)
    assert note.startswith("the first step trained nothing: all rewards are equal, and no part of a sample has a score")
    assert len(list(first_step_notes({**line, "policy/on_policy_gap": float("nan")}, 0.02))) == 2


WATCHED = WatchdogConfig.model_validate({"alerts": [{"name": "grid", "share": 1.0}]})


def dog_of(**limits: Any) -> Watchdog:
    subject = watchdog_inputs(run_of(**limits), ["easy"], ["easy", "judge", "grid_artifacts"])
    assert subject is not None
    return Watchdog(subject)


def steps(dog: Watchdog, key: str, values: Sequence[float], start: int = 1) -> list[Alert]:
    return [alert for i, value in enumerate(values) for alert in dog.after_step({"step": start + i, key: value})]


def rewarded(
    dog: Watchdog, trained: Sequence[float], held_out: Sequence[float], std: float = 0.5, key: str = "judge"
) -> list[Alert]:
    """Evaluations at 0, 2, 4: the first goes with the first step's reward, later ones with the mean of two steps."""
    alerts = dog.after_evaluation({"step": 0, f"eval/{key}/mean": held_out[0], f"eval/{key}/std": std})
    for i, (reward, judge) in enumerate(zip(trained[1:], held_out[1:], strict=True)):
        first = trained[0] if i == 0 else reward - 0.5
        for step, value in ((2 * i + 1, first), (2 * i + 2, 2 * reward - first)):
            alerts += dog.after_step({"step": step, "reward/mean": value, "reward/std": 1.0})
        alerts += dog.after_evaluation({"step": 2 * i + 2, f"eval/{key}/mean": judge, f"eval/{key}/std": std})
    return alerts


def kinds(alerts: Sequence[Alert]) -> list[tuple[str, int]]:
    return [(alert.kind, alert.step) for alert in alerts]


class TestHacking:
    def test_a_rising_reward_and_a_falling_evaluation_raise_an_alert(self):
        # halves of two of four: 1 to 2 is a rise of 1 std; 0.8 to 0.7 a fall of 0.2 of 0.5
        alerts = rewarded(dog_of(window=4), [1, 1, 2, 2], [0.8, 0.8, 0.7, 0.7])
        assert kinds(alerts) == [("hacking", 6)]
        assert alerts[0].measured == (
            "the reward rose from 1 to 2, and 'judge', which is not trained on, fell from 0.8 to 0.7"
        )
        assert "objective.kl.beta" in alerts[0].suggested_fix
        assert alerts[0].suggested_fix.endswith("train on 'judge' as well; keep checkpoints: set checkpoint.every")

    def test_the_alert_names_an_existing_checkpoint(self):
        # the older half of the window ends at step 2, and later checkpoints saw the fall
        for steps_saved, text in (
            ((1, 2, 4), "go back to the checkpoint of step 2"),
            ((1, 6), "go back to the checkpoint of step 1"),
            ((4, 6), "keep checkpoints: set checkpoint.every"),
        ):
            subject = watchdog_inputs(
                run_of(window=4), ["easy"], ["judge"], checkpoints=lambda saved=steps_saved: saved
            )
            assert subject is not None
            (alert,) = rewarded(Watchdog(subject), [1, 1, 2, 2], [0.8, 0.8, 0.7, 0.7])
            assert alert.suggested_fix.endswith(text)

    @pytest.mark.parametrize(
        ("trained", "held_out"),
        [
            ([1, 1, 2, 2], [0.8, 0.8, 0.76, 0.76]),  # a fall of 0.08 std is within the margin of 0.1
            ([1, 1, 1.05, 1.05], [0.8, 0.8, 0.1, 0.1]),  # a rise of 0.05 std is no rise
            ([2, 2, 1, 1], [0.8, 0.8, 0.1, 0.1]),  # both fall
            ([1, 1, 2, 2], [0.7, 0.7, 0.8, 0.8]),  # both rise
            ([1, 2, 3], [0.8, 0.4, 0.1]),  # the window is not full
        ],
    )
    def test_no_alert(self, trained: list[float], held_out: list[float]):
        assert rewarded(dog_of(window=4), trained, held_out) == []

    def test_constant_rewards_are_measured_by_their_size(self):
        # recall 0.5 to 0.44 is 12 % of it, to 0.46 8 %
        assert kinds(rewarded(dog_of(), [1, 2], [0.5, 0.44], std=0.0)) == [("hacking", 2)]
        assert rewarded(dog_of(), [1, 2], [0.5, 0.46], std=0.0) == []

    def test_one_sample_of_many_is_no_fall(self):
        # 1, 1, 1, 359/360: a fall of 0.0014; the wrong one makes a std of sqrt(359)/360 = 0.053, of which it is 0.026
        lines = [{"eval/judge/mean": mean, "eval/judge/std": std} for mean, std in [(1, 0)] * 3 + [(359 / 360, 0.0526)]]
        dog, alerts = dog_of(window=4), []
        for step, line in enumerate(lines, 1):
            dog.after_step({"step": step, "reward/mean": step, "reward/std": 0.1})
            alerts += dog.after_evaluation({"step": step, **line})
        assert alerts == []

    def test_trained_rewards_are_not_held_out(self):
        assert rewarded(dog_of(), [1, 2], [0.8, 0.1], key="easy") == []
        assert rewarded(dog_of(), [1, 2], [0.8, 0.1], key="grid_artifacts") == []
        assert kinds(rewarded(dog_of(hacking=None), [1, 2], [0.8, 0.1])) == []


class TestNoEffect:
    KEY = "credit/anchor_states/changed_frac"

    def test_mechanism_without_effect_in_a_window_raises_an_alert(self):
        alerts = steps(dog_of(window=3), self.KEY, [0.0, 0.0, 0.0])
        assert kinds(alerts) == [("no_effect", 3)]
        assert alerts[0].measured == "in 3 steps no decision is changed by credit/anchor_states/changed_frac"
        assert "mmgrpo explain" in alerts[0].suggested_fix

    def test_one_changed_decision_in_a_window_is_enough(self):
        assert steps(dog_of(window=3), self.KEY, [0.0, 0.0, 1e-4, 0.0, 0.0]) == []
        assert kinds(steps(dog_of(window=3), self.KEY, [0.0, 1e-4, 0.0, 0.0, 0.0])) == [("no_effect", 5)]

    def test_limit_is_a_share_and_null_switches_the_alert_off(self):
        assert kinds(steps(dog_of(no_effect=0.01), self.KEY, [0.005, 0.01])) == [("no_effect", 2)]
        assert steps(dog_of(no_effect=None), self.KEY, [0.0, 0.0]) == []

    def test_all_idle_mechanisms_are_in_one_alert(self):
        dog, line = dog_of(), {self.KEY: 0.0, "terms/perception/changed_frac": 0.0, "terms/kl/changed_frac": 1.0}
        alerts = [alert for step in (1, 2) for alert in dog.after_step({"step": step, **line})]
        assert [alert.measured for alert in alerts] == [
            "in 2 steps no decision is changed by credit/anchor_states/changed_frac, terms/perception/changed_frac"
        ]

    def test_resumed_run_takes_the_largest_share_of_the_updates_of_a_step(self):
        lines = [{"step": step, "update": n, self.KEY: float(n == 0)} for step in (1, 2) for n in (0, 1)]
        assert dog_of().replay(lines, []) == []
        assert kinds(dog_of().replay([{**line, self.KEY: 0.0} for line in lines], [])) == [("no_effect", 2)]


class TestOtherAlerts:
    @pytest.mark.parametrize("key", ["samples/distinct_frac", "samples/pixel_spread", "policy/entropy_mean"])
    def test_diversity(self, key: str):
        # first window 0.8; half of it is 0.4, and 0.39 is below
        assert kinds(steps(dog_of(), key, [0.8, 0.8, 0.41, 0.41, 0.37])) == [("diversity", 5)]
        assert steps(dog_of(), key, [0.8, 0.8, 0.1]) == []  # the windows overlap still
        assert steps(dog_of(diversity=None), key, [0.8, 0.8, 0.1, 0.1]) == []

    def test_length_and_boxes(self):
        for key, what in (("completions/mean_length", "length"), ("samples/mean_boxes", "number of boxes")):
            assert steps(dog_of(), key, [10, 10, 19, 21]) == []  # a mean of 20 is twice as long, no more
            (longer,) = steps(dog_of(), key, [10, 10, 19, 21, 20])
            assert longer.measured == f"the {what} of an answer went from 10 to 20.5"
            assert kinds(steps(dog_of(), key, [10, 10, 5, 4])) == [("length", 4)]

    def test_grid(self):
        assert kinds(steps(dog_of(), "reward/grid_artifacts/mean", [0.1, 0.1, 0.2, 0.21])) == [("grid", 4)]
        dog = dog_of()
        alerts = [
            dog.after_evaluation({"step": 5 * i, "eval/grid_artifacts/mean": v}) for i, v in enumerate([0, 0, 0.3, 0.3])
        ]
        assert [kinds(alert) for alert in alerts] == [[], [], [], [("grid", 15)]]

    def test_dead_groups(self):
        assert kinds(steps(dog_of(), "groups/zero_std_frac", [0.5, 1.0, 0.9])) == [("dead_groups", 3)]
        assert steps(dog_of(), "groups/zero_std_frac", [1.0, 0.8, 1.0]) == []  # 0.9 is not above 0.9

    def test_gap(self):
        # the default surrogate is clipped at 0.2
        assert kinds(steps(dog_of(), "policy/on_policy_gap", [1e-6, 0.2, 0.21])) == [("on_policy_gap", 3)]
        assert kinds(steps(dog_of(on_policy_gap=0.1), "policy/on_policy_gap", [0.03])) == [("on_policy_gap", 1)]
        assert kinds(steps(dog_of(), "policy/on_policy_gap", [float("nan")])) == [("on_policy_gap", 1)]

    def test_an_alert_is_raised_once_in_ten_steps_and_not_again_after_a_resume(self):
        values = [1.0] * 24
        alerts = steps(dog_of(), "groups/zero_std_frac", values)
        assert kinds(alerts) == [("dead_groups", step) for step in (2, 12, 22)]
        dog = dog_of()
        logged = {"groups/zero_std_frac": 1.0, "reward/mean": 0.0, "reward/std": 0.0}
        lines = [{"step": step, "update": u, **logged} for step in (1, 2, 3) for u in (0, 1)]
        dog.replay(lines, [{"step": 0}, {"step": 3, "eval/judge/mean": 1.0}])
        assert kinds(steps(dog, "groups/zero_std_frac", values[:10], start=4)) == [("dead_groups", 12)]


def test_invalid_settings_raise() -> None:
    with pytest.raises(ConfigError, match=r"names easy; .* not trained on: judge"):
        watchdog_inputs(run_of(held_out=["easy"]), ["easy"], ["easy", "judge"])
    with pytest.raises(ConfigError, match=r"needs a reward in evaluation.rewards that is not trained on"):
        watchdog_inputs(run_of(stop=["hacking"]), ["easy"], ["easy"])
    with pytest.raises(ConfigError, match=r"evaluation\.watchdog\.stop"):
        run_of(stop=["hack"])
    with pytest.raises(ConfigError, match=r"watchdog\.alerts\.0\.name: must be 'hacking', .*; got 'hack'"):
        run_of(hack=0.2)
    with pytest.raises(ConfigError, match="stop: grid is never raised"):
        run_of(stop=["grid"], grid=None)
    alerts = [{"name": "grid", "limit": 1.0}, {"name": "grid", "limit": 2.0}]
    with pytest.raises(ConfigError, match="grid, grid repeat: name each alert once"):
        validated({"evaluation": {"watchdog": {"alerts": alerts}}})
    with pytest.raises(ConfigError, match="grid takes no 'share'; its only setting is limit"):
        Watchdog(WatchdogInputs(config=WATCHED, held_out=(), clip_bound=None, checkpoints=tuple))
    assert watchdog_inputs(validated({}), ["easy"], ["easy"]) is None


def held_out_of(rewards: list[dict[str, Any]], judges: list[dict[str, Any]], **limits: Any) -> tuple[str, ...]:
    evaluation = {"prompts": {"source": "x.txt"}, "rewards": judges, "watchdog": limits}
    config = validated({"rewards": rewards, "evaluation": evaluation})
    names = [[reward.logged_name for reward in result] for result in (config.rewards, judges_of(config))]
    subject = watchdog_inputs(config, *names)
    assert subject is not None
    return subject.held_out


def judges_of(config: RunConfig) -> Sequence[EvaluationRewardConfig]:
    return config.evaluation.rewards or config.rewards if config.evaluation else ()


class TestWhatIsTrainedOn:
    """A judge is known by the reward that it is and its settings; its label says nothing."""

    tagged = {"name": "exact_match", "extract": "tag"}  # noqa: RUF012

    def test_the_same_reward_under_another_label(self):
        assert held_out_of([self.tagged], [{**self.tagged, "label": "held_out"}]) == ()
        assert held_out_of([{**self.tagged, "weight": 2.0, "label": "a"}], [{**self.tagged, "label": "b"}]) == ()

    def test_a_default_is_as_good_as_its_value(self):
        assert held_out_of([self.tagged], [{**self.tagged, "column": "answer", "label": "held_out"}]) == ()

    def test_other_settings_make_another_judge(self):
        assert held_out_of([self.tagged], [{"name": "exact_match", "label": "plain"}]) == ("plain",)
        assert held_out_of([self.tagged], [{"name": "yes_no", "label": "exact_match"}]) == ("exact_match",)

    def test_a_reward_of_weight_0_is_not_trained_on(self):
        watched_only = {"name": "yes_no", "weight": 0}
        assert held_out_of([self.tagged, watched_only], [{"name": "yes_no"}]) == ("yes_no",)

    def test_naming_one_that_is_trained_on_is_an_error(self):
        judges = [{**self.tagged, "label": "held_out"}, {"name": "yes_no"}]
        with pytest.raises(ConfigError, match=r"names held_out; .* not trained on: yes_no"):
            held_out_of([self.tagged], judges, held_out=["held_out"])

    @pytest.mark.parametrize(
        ("name", "held_out"),
        [
            ("quickstart/digits-vlm", ()),
            ("quickstart/arithmetic-text", ()),
            ("quickstart/digits-image", ("held_out_accuracy",)),
            ("quickstart/moving-digit-video", ("held_out_accuracy",)),
            ("quickstart/digits-edit", ("held_out_edits",)),
            ("quickstart/digits-tokens", ("held_out_accuracy",)),
            ("recipes/qwen2.5-vl-gui", ("held_out_type",)),
            ("recipes/sd3.5-flow-grpo-fast", ("hps_v2",)),
        ],
    )
    def test_shipped_runs(self, name: str, held_out: tuple[str, ...]):
        config = load_config(name)
        names = [[reward.logged_name for reward in result] for result in (config.rewards, judges_of(config))]
        subject = watchdog_inputs(config, *names)
        assert subject is not None
        assert subject.held_out == held_out


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"hacking": 0.0}, r"limit of hacking must be above 0, got 0\.0"),
        ({"diversity": 1.0}, r"limit of diversity must be between 0 and 1, got 1\.0"),
        ({"length": 1.0}, r"limit of length must be above 1, got 1\.0"),
        ({"dead_groups": 1.5}, r"limit of dead_groups must be above 0 and at most 1, got 1\.5"),
        ({"no_effect": -0.1}, r"limit of no_effect must be at least 0 and below 1, got -0\.1"),
        ({"length": "long"}, r"limit of length must be float or null, got 'long'"),
    ],
)
def test_limits_out_of_range_raise(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dog_of(**limits)


def test_limits_at_the_ends_of_their_ranges_are_valid() -> None:
    dog_of(dead_groups=1.0, no_effect=0.0, grid=None)


def test_explain_lists_the_alerts() -> None:
    text = " ".join(explanation(run_of(stop=["grid"], length=None)).split())
    kinds = "hacking, diversity, grid, dead_groups, on_policy_gap, no_effect"
    assert f"watchdog alerts for {kinds}; an alert stops the run: grid" in text


def test_variety_within_groups() -> None:
    texts = [Sample(Prompt("q"), i // 3, i % 3, text=text) for i, text in enumerate(["a", "a", "a", "a", "b", "c"])]
    assert diversity_metrics(texts) == {"samples/distinct_frac": 0.5}  # 0 and 1
    black, white = (Image.fromarray(np.full((8, 8), gray, dtype=np.uint8)) for gray in (0, 255))
    samples = [Sample(Prompt("q"), i // 2, i % 2, image=image) for i, image in enumerate([black, white, white, white])]
    assert diversity_metrics(samples) == {"samples/pixel_spread": pytest.approx(0.25)}  # a half and 0
    filmed = [Sample(Prompt("q"), 0, i, video=[white, frame, white]) for i, frame in enumerate([black, white])]
    assert diversity_metrics(filmed) == {"samples/pixel_spread": pytest.approx(0.5)}
    assert diversity_metrics(texts[:1]) == {}


def test_boxes_are_counted_from_explanations() -> None:
    def boxed(samples: Sequence[Sample]) -> list[float | Score]:
        stated, reference = {"box": [0, 0, 1, 1], "role": "stated"}, {"box": [0, 0, 1, 1], "role": "reference"}
        flood = Score(0.0, {"boxes": [stated] * 30, "num_boxes": 300})  # of which only the first were kept
        return [*(Score(1.0, {"boxes": [stated] * i + [reference]}) for i in (0, 3)), flood]

    samples = [Sample(Prompt("q"), 0, member, text="") for member in range(3)]
    plain = NamedReward("plain", lambda samples: [Score(1.0, {"parsed": "x"}), 0.0, 0.0])
    assert box_metrics(score(samples, [plain, NamedReward("boxed", boxed)])) == {"samples/mean_boxes": 101}
    assert box_metrics(score(samples, [plain])) == {}


def vowels(samples: Sequence[Sample]) -> list[float]:
    """Wants vowels, whichever: a text of one letter will do."""
    return [sum(letter in "aeiou" for letter in sample.text or "") / 4 for sample in samples]


def no_e(samples: Sequence[Sample]) -> list[float]:
    """What was meant: words without the letter e. The run below does not train on it."""
    return [1 - (sample.text or "").count("e") / 4 for sample in samples]


def bad_taste(samples: Sequence[Sample]) -> list[float]:
    """A reward that a policy can hack: it likes vowels, and e above all."""
    return [v + (sample.text or "").count("e") / 4 for sample, v in zip(samples, vowels(samples), strict=True)]


@pytest.mark.nightly
@pytest.mark.parametrize("stop", [[], ["hacking"]])
def test_a_reward_that_is_hacked_rings(stop: list[str], tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    config = {
        "output": str(tmp_path),
        "steps": 24,
        "rollout": {"prompts_per_step": 2, "group_size": 16},
        "update": {"optimizer": {"lr": 0.3}},
        "rewards": [],
        "evaluation": {
            "prompts": {"source": str(tmp_path / "prompts.txt")},
            "rewards": [{"name": "python:tests.test_watchdog:no_e", "label": "no_e"}],
            "every": 2,
            "watchdog": {"window": 4, "stop": stop, "alerts": [{"name": "diversity", "limit": None}]},
        },
    }
    trainer = Trainer(letters(), {"taste": bad_taste}, [Prompt("one"), Prompt("two")], config)
    folder = trainer.train()
    alerts = [json.loads(line) for line in (folder / "alerts.jsonl").read_text().splitlines()]
    raised = [alert for alert in alerts if alert["kind"] == "hacking"]
    assert raised
    assert "'no_e', which is not trained on, fell from" in raised[0]["measured"]
    about = json.loads((folder / "run.json").read_text())
    if stop:
        assert about["status"] == "stopped by the alert hacking"
        assert trainer.step == raised[0]["step"] < 24
        assert (folder / f"checkpoints/step-{trainer.step:06d}").is_dir()
    else:
        assert about["status"] == "finished"
        assert trainer.step == 24
