"""A hackable reward on a small digits model: it rises, held-out accuracy falls, an alert ends the run."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.hacking import HackingRun, run, warmed_up

SMALL: dict[str, Any] = {
    "steps": 10,
    "rollout.group_size": 8,
    "evaluation.every": 2,
    "evaluation.samples_per_prompt": 20,
    "evaluation.watchdog.window": 2,
    "evaluation.watchdog.alerts": [{"name": "hacking", "limit": 0.03}],
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> HackingRun:
    output = tmp_path_factory.mktemp("hacking")
    return run("stopped", warmed_up(output, steps=200), output, **SMALL)


@pytest.mark.slow
def test_the_trained_reward_rises_and_the_evaluated_one_falls(stopped: HackingRun) -> None:
    last = max(stopped.trained)
    assert stopped.trained[last] > stopped.trained[1] + 0.03
    assert stopped.held_out[last] < stopped.held_out[0] - 0.05


@pytest.mark.slow
def test_the_alert_names_the_setting_and_ends_the_run_with_a_checkpoint(stopped: HackingRun) -> None:
    (alert,) = [alert for alert in stopped.alerts if alert["kind"] == "hacking"]
    assert "'held_out_accuracy', which is not trained on, fell from" in alert["measured"]
    assert alert["suggested_fix"].startswith("raise objective.kl.beta")
    assert stopped.status == "stopped by the alert hacking"
    assert max(stopped.trained) == alert["step"] < SMALL["steps"]
    assert (stopped.folder / f"checkpoints/step-{alert['step']:06d}").is_dir()
