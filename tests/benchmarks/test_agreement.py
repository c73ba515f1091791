"""Functions from an invented author's repository, compared with those of mmgrpo."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks.agreement.__main__ import agrees, main, table
from benchmarks.agreement.authors import Source, commit_of, taken
from benchmarks.agreement.comparing import P, advantage, agreement, loss, random_rows
from mmgrpo.errors import ConfigError

CODE = """
from nowhere import DataProto, register, torch_functional as verl_F

EPS = 1e-9

@register("advantage")
def centered(reward_BT: DataProto, mask_BT, group_B, *, weight=1.0):
    print("advantages of", len(group_B))
    reward_B = reward_BT.sum(1)
    for group in set(group_B.tolist()):
        reward_B[group_B == group] -= reward_B[group_B == group].mean() + EPS
    return weight * reward_B[:, None] * mask_BT

class Actor(DataProto):
    @staticmethod
    def update(logprob_BT, advantage_BT, mask_BT) -> DataProto:
        return verl_F.masked_mean(-advantage_BT * logprob_BT, mask_BT)
"""
FILE = "trainer/core.py"
CENTERED = Source(repo="somebody/method", path=FILE, names=("centered", "EPS"))
UPDATE = Source(repo="somebody/method", path=FILE, names=("Actor.update",))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of a repository."""
    folder = tmp_path_factory.mktemp("clones")
    clone = folder / "somebody+method" / "repo"
    (clone / "trainer").mkdir(parents=True)
    (clone / FILE).write_text(CODE)
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=clone, check=True)
    return folder


def _centered(weight: float = 1.0):
    return advantage(
        "dr-grpo",
        CENTERED,
        lambda theirs, rows: theirs.centered(rows.spread(rows.reward_B), rows.mask_BT, rows.group_B, weight=weight),
    )


def test_functions_are_extracted_without_imports_of_their_file(folder: Path, capsys: pytest.CaptureFixture[str]):
    # group 0: 1 and 3 less their mean; the second row's last decision is masked
    reward_BT, mask_BT = torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([[1, 1], [1, 0]])
    result = taken(folder, CENTERED).centered(reward_BT, mask_BT, torch.zeros(2))
    torch.testing.assert_close(result, torch.tensor([[-1.0, -1.0], [1.0, 0.0]]))
    assert capsys.readouterr().out == ""
    update = taken(folder, UPDATE).update  # 1 at each of the three decisions that count
    assert update(torch.tensor([[-1.0, -1.0], [1.0, 9.0]]), torch.tensor([[1.0], [-1.0]]), mask_BT) == pytest.approx(
        1.0
    )


def test_equal_functions_agree(folder: Path):
    result = agreement(folder, _centered(), draws=3)
    assert agrees(result)
    assert 0 < result.difference["advantage"] < 1e-6 < 1 < result.size["advantage"]
    (row,) = list(table([result]))[2:]
    assert row.startswith(f"| dr-grpo | somebody/method@{commit_of(folder, 'somebody/method')}, `centered` | advantage")


def test_different_functions_do_not(folder: Path):
    result = agreement(folder, _centered(weight=1.5), draws=3)
    assert result.difference["advantage"] == pytest.approx(result.size["advantage"] / 2, rel=1e-5)
    assert not agrees(result)


def test_losses_are_compared_by_value_and_gradient(folder: Path):
    over = {"objective.surrogate": {"name": "policy_gradient"}, "objective.aggregate": {"name": "token_mean"}}
    case = loss(
        "dr-grpo",
        UPDATE,
        lambda theirs, inputs: theirs.update(inputs.logprob_BT, inputs.advantage_BT, inputs.mask_BT),
        over=over,
    )
    result = agreement(folder, case, draws=3)
    assert result.difference.keys() == {"value", "gradient"}
    assert agrees(result)
    assert max(result.difference.values()) < 1e-7 < min(result.size.values())
    unlike = agreement(folder, loss("dr-grpo", UPDATE, _half, over=over), draws=3)
    assert unlike.difference["gradient"] == pytest.approx(unlike.size["gradient"] / 2)


def _half(theirs, inputs):
    return theirs.update(inputs.logprob_BT, inputs.advantage_BT, inputs.mask_BT) / 2


def test_missing_functions_raise(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ConfigError, match=r"somebody/method, trainer/core.py has no lost: correct the names"):
        taken(folder, Source(repo="somebody/method", path=FILE, names=("centered", "lost")))
    with pytest.raises(ConfigError, match=r"no clone of some/other in .*: clone it to .*some\+other/repo"):
        taken(folder, Source(repo="some/other", path=FILE, names=("centered",)))
    assert main([str(tmp_path), "--only", "dapo", "gspo"]) == 0
    assert "`compute_policy_loss_gspo` | no clone |" in capsys.readouterr().out


def test_groups_are_all_right_or_all_wrong():
    first = [random_rows(seed).right_B.view(P, -1)[0].tolist() for seed in (0, 1)]
    assert first == [[0.0] * 5, [1.0] * 5]
    rows = random_rows(7)
    assert rows.mask_BT.any(1).all()
    assert not rows.mask_BT.all()
    assert (rows.logprob_BT < 0).all()
