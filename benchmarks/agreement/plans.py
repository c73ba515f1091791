"""Schedules of a run: the trained steps of a denoiser, the temperature of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from mmgrpo.policies.temperature_schedule import TemperatureSchedule

from benchmarks.agreement.authors import Source
from benchmarks.agreement.comparing import Case, Numbers, Rows
from mmgrpo.config.loading import find_config, read_layers
from mmgrpo.maths.schedules import SCHEDULES
from mmgrpo.maths.windows import WINDOWS

NUM_STEPS = 25
TOKENS = (0, 9, 10, 60, 400, 2000)


def _read(method: str) -> dict:
    return read_layers(find_config(f"methods/{method}"))


def _window(rows: Rows) -> Numbers:
    settings = dict(_read("mix-grpo")["rollout"]["window"])
    name = settings.pop("name")
    # the last of the steps ends without noise
    return {"steps": torch.tensor(WINDOWS[name](NUM_STEPS - 1, step=10 * rows.seed, **settings))}


def _progress(theirs: SimpleNamespace, rows: Rows) -> Numbers:
    states = theirs.GRPOTrainingStates(
        iters_per_group=25, group_size=4, max_timesteps=NUM_STEPS - 2, prog_overlap=True, prog_overlap_step=1,
        roll_back=True,
    )  # fmt: skip
    for _ in range(10 * rows.seed):
        states.update_iteration()
    return {"steps": torch.tensor(states.get_current_timesteps())}


def _cooled(rows: Rows) -> Numbers:
    files = _read("ead")
    pace = dict(files["schedules"]["policy.temperature_schedule.pace"])
    now = SCHEDULES[pace.pop("name")](200 * rows.seed, **pace)
    temperature_schedule = TemperatureSchedule(**{**files["policy"]["temperature_schedule"], "pace": now})
    return {"factor": torch.tensor([temperature_schedule.factor(token) for token in TOKENS])}


def _annealed(theirs: SimpleNamespace, rows: Rows) -> Numbers:
    unit, now = torch.ones((), dtype=torch.float64), 200 * rows.seed
    result = [theirs.annealed_sampling_processor([0] * token, unit, 1.2, 0.1, 25, now, "negexp") for token in TOKENS]
    return {"factor": 1 / torch.stack(result)}


CASES: Sequence[Case] = (
    Case(
        method="mix-grpo",
        source=Source(
            repo="Tencent-Hunyuan/MixGRPO", path="fastvideo/utils/grpo_states.py", names=("GRPOTrainingStates",)
        ),
        theirs=_progress,
        ours=_window,
        note="25 steps, as long as the window fits",
    ),
    Case(
        method="ead",
        source=Source(
            repo="yangalan123/EAD-RLVR",
            path="verl/workers/rollout/vllm_rollout/annealed_sampling.py",
            names=("annealed_sampling_processor",),
        ),
        theirs=_annealed,
        ours=_cooled,
        note="negexp, six tokens of 50 steps",
    ),
)
