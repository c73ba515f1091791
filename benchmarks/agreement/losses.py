"""Losses of single decisions and of rows, given the advantages that our method makes.

Axes: B rows, T decisions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.agreement.authors import Settings, Source
from benchmarks.agreement.comparing import Case, G, LossInputs, P, Rows, T, loss
from tests.configs.method_steps import Step

CORE = "verl/trainer/ppo/core_algos.py"
VERL = "zichongli5/verl"
WITHOUT_KL = {"objective.kl.beta": 0.0}
TOKEN_MEAN = "token-mean"
SAMPLE_MEAN = "seq-mean-token-mean"

Theirs = Callable[[SimpleNamespace, LossInputs], Tensor]


def _source(*names: str, repo: str = VERL, path: str = CORE) -> Source:
    return Source(repo=repo, path=path, names=names)


def _bounds(low: float, high: float, **further: Any) -> Settings:
    """The settings of verl's policy losses."""
    return Settings(clip_ratio=low, clip_ratio_low=low, clip_ratio_high=high, global_batch_info={}, **further)


def _policy_loss(name: str, settings: Settings, mode: str, **further: Any) -> Theirs:
    """verl's policy losses of version 0.4 and later."""

    def called(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
        result = getattr(theirs, name)(
            inputs.old_BT, inputs.logprob_BT, inputs.advantage_BT, inputs.mask_BT, mode, settings, **further
        )
        return result[0]

    return called


def _verl(method: str, name: str, settings: Settings, mode: str, **further: Any) -> Case:
    return loss(method, _source(name, "agg_loss"), _policy_loss(name, settings, mode), **further)


def _dynamic(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    settings = _bounds(0.16, 0.2, clip_type="dynamic", clip_ratio_c=10.0)
    return theirs.compute_policy_loss_dcpo(
        inputs.old_BT, inputs.logprob_BT, inputs.advantage_BT, inputs.mask_BT, SAMPLE_MEAN, settings
    )[0]


def _preserving(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    return theirs.compute_gppo_loss(
        inputs.old_BT, inputs.logprob_BT, inputs.advantage_BT, inputs.mask_BT, 0.2, 0.2, 0.28, 10.0, TOKEN_MEAN
    )[0]


def _clipped(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    result: Tensor = theirs.compute_policy_loss(
        inputs.old_BT, inputs.logprob_BT, inputs.advantage_BT, inputs.mask_BT, 0.2, inputs.mask_BT, None, 0.16, 0.24
    )[0]
    return result


def _dual(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    result: Tensor = theirs.compute_policy_loss(
        inputs.old_BT, inputs.logprob_BT, inputs.advantage_BT, inputs.mask_BT, 0.2, 0.3, 3.0, "token"
    )[0]
    return result


def _inputs(inputs: LossInputs, **further: Tensor) -> dict[str, Tensor]:
    """The inputs of the losses of TRL's trainers, of rows without a prompt."""
    ids_BT, none_B0 = inputs.rows.token_BT, inputs.mask_BT[:, :0]
    return {
        "prompt_ids": none_B0, "prompt_mask": none_B0, "completion_ids": ids_BT, "completion_mask": inputs.mask_BT,
        "old_per_token_logps": inputs.old_BT, **further,
    }  # fmt: skip


def _trainer(inputs: LossInputs, **settings: Any) -> SimpleNamespace:
    """A trainer of TRL whose model says the log-probabilities."""
    return SimpleNamespace(
        _get_per_token_logps=lambda *_, **__: inputs.logprob_BT,
        _metrics={"train": defaultdict(list)},
        accelerator=SimpleNamespace(device="cpu", gather_for_metrics=lambda value: value),
        control=SimpleNamespace(should_evaluate=False),
        **settings,
    )


def _reference_reward(rows: Rows) -> Tensor:
    return rows.reward_B.flip(0)


def _with_reference(rows: Rows) -> Step:
    return rows.step(rows.reward_B, columns={"reference_reward": _reference_reward(rows).tolist()})


def _above_reference(theirs: SimpleNamespace, loss_inputs: LossInputs) -> Tensor:
    margin_B = loss_inputs.rows.reward_B - _reference_reward(loss_inputs.rows)
    inputs = _inputs(loss_inputs, advantages=_centered(loss_inputs), advantage_constrain=margin_B)
    return theirs.compute_loss(_trainer(loss_inputs), None, inputs)


def _plain(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    trainer = _trainer(inputs, beta=0.0, args=Settings(adjust_gd=False))
    return theirs.compute_loss(trainer, None, _inputs(inputs, advantages=inputs.advantage_BT[:, 0]))


def _late(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    reward_PG = inputs.rows.reward_B.view(P, G)
    standard_PG = (reward_PG - reward_PG.mean(1, keepdim=True)) / (reward_PG.std(1, keepdim=True) + 1e-6)
    mask_BT = inputs.mask_BT
    return theirs.compute_policy_loss(
        None, inputs.old_BT, inputs.logprob_BT, standard_PG.view(-1, 1) * mask_BT, mask_BT,
        whether_use_location=True, cliprange_low=0.2, cliprange_high=0.28, use_token_level_loss=True, alpha=0.1,
        add_loaction_bonus=True,
    )[0]  # fmt: skip


def _replayed(rows: Rows) -> Tensor:
    """The last two rows of a group."""
    return torch.arange(len(rows.group_B)) % G >= G - 2


def _with_replays(rows: Rows) -> Step:
    return rows.step(rows.reward_B, sources=_replayed(rows).int().tolist())


def _replaying(theirs: SimpleNamespace, loss_inputs: LossInputs) -> Tensor:
    inputs = _inputs(
        loss_inputs, advantages=loss_inputs.advantage_BT[:, 0], is_online=(~_replayed(loss_inputs.rows)).double()
    )
    settings = {"beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.2, "loss_type": "grpo"}
    return theirs._compute_loss(
        _trainer(loss_inputs, **settings, replay_strategy="recent", off_policy_loss_coef=1.0), None, inputs
    )


def _gvpo(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    mesh = SimpleNamespace(_flatten=lambda: SimpleNamespace(get_group=lambda: None))
    advantage_BT = _centered(inputs)[:, None] * inputs.mask_BT
    value = theirs.compute_policy_loss_gvpo(
        inputs.old_BT, inputs.logprob_BT, advantage_BT, inputs.mask_BT, 0.1, inputs.rows.group_B, mesh, G
    )
    return value / P


def _centered(inputs: LossInputs) -> Tensor:
    reward_PG = inputs.rows.reward_B.view(P, -1)
    return (reward_PG - reward_PG.mean(1, keepdim=True)).flatten()


def _alone(data: Any, *_: Any) -> Any:
    """Gathering over one process."""
    return data


ALONE = {
    "allgather_dict_tensors": _alone,
    "torch": SimpleNamespace(unique=torch.unique, distributed=SimpleNamespace(get_world_size=lambda group: 1)),
}
"""One process, for code that gathers over several."""


CASES: Sequence[Case] = (
    _verl("dapo", "compute_policy_loss_vanilla", _bounds(0.2, 0.28, clip_ratio_c=1e9), TOKEN_MEAN),
    _verl("grpo", "compute_policy_loss_vanilla", _bounds(0.2, 0.2, clip_ratio_c=1e9), SAMPLE_MEAN, over=WITHOUT_KL),
    _verl("cures", "compute_policy_loss_vanilla", _bounds(0.2, 0.2, clip_ratio_c=3.0), TOKEN_MEAN, over=WITHOUT_KL),
    _verl(
        "dr-grpo",
        "compute_policy_loss_vanilla",
        _bounds(0.2, 0.2, clip_ratio_c=1e9),
        "seq-mean-token-sum-norm",
        over={"objective.aggregate": {"name": "constant_length", "length": T}},
        note="of length 7",
    ),
    _verl("gspo", "compute_policy_loss_gspo", _bounds(3e-4, 4e-4), SAMPLE_MEAN),
    _verl("sapo", "compute_policy_loss_sapo", _bounds(0.2, 0.2, tau_pos=1.0, tau_neg=1.05), SAMPLE_MEAN),
    _verl("cispo", "compute_policy_loss_cispo", _bounds(1.0, 4.0), TOKEN_MEAN),
    loss(
        "gpg",
        _source("GPGTrainer.compute_loss", repo="AMAP-ML/GPG", path="open-r1/src/open_r1/gpg_trainer.py"),
        _plain,
        note="over the groups with different rewards, without adjust_gd",
    ),
    loss(
        "ppl-position",
        _source(
            "compute_policy_loss", repo="RUCAIBox/Slow_Thinking_with_LLMs", path=f"entropy2performance/verl/{CORE}"
        ),
        _late,
        step=lambda rows: replace(rows.step(rows.reward_B), number=200),
        note="its bonus of later tokens on the standardized reward, at step 200",
    ),
    _verl("gmpo", "compute_policy_loss_geo_mean", _bounds(0.4, 0.4), SAMPLE_MEAN),
    _verl(
        "kl-cov",
        "compute_policy_loss_kl_cov",
        _bounds(0.2, 0.2, policy_loss=Settings(kl_cov_ratio=0.1, ppo_kl_coef=1.0)),
        TOKEN_MEAN,
        over={"objective.modulations": [{"name": "kl_covariance", "share": 0.1}]},
        note="a tenth of the tokens",
    ),
    loss(
        "dcpo-clip",
        Source(
            repo="lime-RL/DCPO",
            path=CORE,
            names=("compute_policy_loss_dcpo", "get_clip_low_high", "agg_loss"),
            needs={"LossCalculator": SimpleNamespace(TM=TOKEN_MEAN, OTM="", SMTS="", SMTM=SAMPLE_MEAN)},
        ),
        _dynamic,
    ),
    loss("klear-gppo", _source("compute_gppo_loss", "agg_loss", repo="suu990901/KlearReasoner"), _preserving),
    loss("ngrpo", _source("compute_policy_loss", repo="nangongrui-ngr/NGRPO"), _clipped),
    loss(
        "papo",
        _source("compute_policy_loss", "average_loss", repo="MikeWangWZHL/PAPO", path="verl/trainer/core_algos.py"),
        _dual,
        over={**WITHOUT_KL, "objective.terms": [], "objective.views": {}},
        note="without its two divergences",
    ),
    loss(
        "gvpo",
        Source(repo="jszkc/GVPO", path="GVPO/gvpo_core_algos.py", names=("compute_policy_loss_gvpo",), needs=ALONE),
        _gvpo,
        note="a mean over groups",
    ),
    loss(
        "aapo",
        _source("AAPOTrainer.compute_loss", repo="JianxXiong/AAPO", path="open-r1/trainer/AAPOTrainer.py"),
        _above_reference,
        step=_with_reference,
    ),
    loss(
        "repo",
        _source("ReplayGRPOTrainer._compute_loss", repo="SihengLi99/RePO", path="src/replay_grpo_trainer.py"),
        _replaying,
        over=WITHOUT_KL,
        step=_with_replays,
        note="off_policy_loss_coef 1",
    ),
)
