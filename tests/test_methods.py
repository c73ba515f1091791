"""The method index: shipped methods, methods of other packages, and its pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.cli.plain_errors import console
from mmgrpo.config import MethodKind
from mmgrpo.config.loading import find_config, load_config
from mmgrpo.config.methods import USES
from mmgrpo.docgen.method_search import NEEDS, SYNONYMS, Entry, method_entries, search
from mmgrpo.docgen.methods import KINDS, OTHERS, by_kind, method_index, method_pages, method_section
from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.trials.trial_plan import plan_comparison

THEIRS = """
about:
  method:
    name: theirs
    title: Theirs
    paper: "2601.00001"
    sources: {objective.surrogate: eq. 3}
    deviations: [None of note.]
    evidence: [By hand.]
rollout: {group_size: 4, prompts_per_step: 2}
objective: {surrogate: {name: cispo, low: null, high: 4.0}, ratio_level: segment, aggregate: token_mean}
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """A package of others with one method, as pip leaves it."""
    path = folder / "theirs.yaml"
    path.write_text(text)
    (folder / "their_methods.py").write_text(f"THEIRS = {str(path)!r}\n")
    info = folder / "their_methods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-methods\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mmgrpo.methods]\ntheirs = their_methods:THEIRS\n")
    monkeypatch.delitem(sys.modules, "their_methods", raising=False)
    monkeypatch.syspath_prepend(str(folder))
    return path


def test_methods_of_other_packages_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, THEIRS)
    result = plan_comparison(["grpo", "theirs"], "quickstart/arithmetic-text", num_seeds=1, root=tmp_path / "runs")
    assert [trial.name for trial in result.trials] == ["grpo-0", "theirs-0"]
    assert result.trials[1].config.objective.ratio_level == "segment"


def test_index_lists_the_functions_of_a_method() -> None:
    row = {row.method.name: row for row in method_index()}["grpo-guard"]
    assert (row.include, row.method.title, row.method.paper) == ("methods/grpo-guard", "GRPO-Guard", "2510.22319")
    assert row.composition == (
        "flow_sde 0.7; window all; advantage group (eps 0.0001, correction 0) within 5; "
        "clipped (low 2e-06, high 2e-06) of the normalized ratio; weight inverse_step"
    )
    assert row.sources[1] == ("policy.strength", "0.7", "flow_grpo, config/base.py, sample.noise_level")
    assert row.published[1][:2] == ("rollout.prompts_per_step", "48")
    assert {key for key, _, _ in row.sources} & {key for key, _, _ in row.published} == set()
    assert (row.heading, row.method.applies_to) == (
        "Ratios: importance ratios of tokens, steps and sequences",
        "denoising",
    )
    assert row.method.published_on == "Stable Diffusion 3.5 Medium at 512 x 512, LoRA of rank 32"
    assert row.formulas == (
        "A = (r - mean_G r) / (std_G r + eps), std^2 = sum (r - mean_G r)^2 / (n - correction)",
        "l = max(-A r, -A clip(r, 1 - low, 1 + high))",
    )


def test_methods_are_listed_by_kind() -> None:
    result = by_kind(method_index())
    assert list(result) == [heading for heading in KINDS.values() if heading in result]
    assert {"methods/bnpo", "methods/nsr"} <= {row.include for row in result[KINDS["advantages"]]}
    assert "methods/gspo" in {row.include for row in result[KINDS["ratios"]]}
    assert set(KINDS) == set(get_args(MethodKind))


def test_section_of_one_method() -> None:
    section = method_section("dance-grpo")
    assert section == method_section("methods/dance-grpo") == method_section("Dance-GRPO")
    assert section.startswith(
        "## DanceGRPO\n\n`methods/dance-grpo`, [arXiv:2505.07818](https://arxiv.org/abs/2505.07818), for"
    )
    mechanism, _, published = section.partition(
        "The published run, FLUX.1-dev at 720 x 720, LoRA of rank 128; in force with"
    )
    assert "l = max(-A r, -A clip(r, 1 - low, 1 + high))" in mechanism
    assert "| `rollout.window` | random_subset (size 0.6) | DanceGRPO, scripts/finetune" in mechanism
    assert "| `rollout.window` | size 6 | DanceGRPO, scripts/finetune" in published
    assert "| `update.optimizer.lr` | 0.0003 | DanceGRPO, scripts/finetune" in published
    assert "update.optimizer.lr" not in mechanism
    assert "Deviations:\n\n- Steps outside the subset are deterministic;" in published
    with pytest.raises(UnknownNameError, match="no method 'dance'; did you mean dance-grpo"):
        method_section("dance")


def test_methods_on_the_command_line() -> None:
    listed = CliRunner().invoke(app, ["methods"], env={"COLUMNS": "200"})
    assert listed.exit_code == 0
    assert listed.output.index("Advantages: the adv") < listed.output.index(" bnpo ") < listed.output.index("Ratios:")
    lines = [" ".join(line.split()) for line in listed.output.splitlines()]
    assert "gspo One ratio for a sample, the geometric mean of its token ratios." in lines
    assert len(listed.output.splitlines()) < len(method_index()) + 4 * len(KINDS)  # a line each
    output = CliRunner().invoke(app, ["methods", "ngrpo"], env={"COLUMNS": "60"}).output
    assert "…" not in output
    wide = CliRunner().invoke(app, ["methods", "ngrpo"], env={"COLUMNS": "200"})
    assert wide.exit_code == 0
    assert "A = (r - mean r') / (std r' + eps)" in wide.output
    assert "train_scripts/train_qwen2" in wide.output
    none = CliRunner().invoke(app, ["methods", "nothing-like-it"])
    assert none.exit_code == 2
    assert "no method 'nothing-like-it'" in none.output


def lines_of(*words: str) -> list[str]:
    result = CliRunner().invoke(app, ["methods", *words])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def listed(*words: str) -> list[str]:
    """The names of a list, in order."""
    return [line.split()[0] for line in lines_of(*words) if line.startswith(" ")]


def failure(*words: str) -> str:
    """The error of a list."""
    result = CliRunner().invoke(app, ["methods", *words], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    return result.output


def test_lines_are_complete_in_a_pipe_and_fit_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    against = {entry.name: entry.against for entry in method_entries()}
    rows = [line.split(maxsplit=1) for line in lines_of("--for", "length") if line.startswith(" ")]
    assert max(map(len, map(" ".join, rows))) > 80
    assert [text for name, text in rows if text != against[name]] == []
    monkeypatch.setattr(console, "_width", 40)  # COLUMNS has no effect on a console that was made with another number
    monkeypatch.setattr(console, "_force_terminal", True)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines_of("--for", "length")]
    assert [line for line in lines if line.startswith(" ") and len(line) > 40] == []


@pytest.mark.nightly
def test_words_that_name_no_method_are_searched() -> None:
    names = listed("entropy", "collapse")
    assert {"dapo", "clip-cov", "kl-cov", "aepo"} <= set(names)
    assert "grpo" not in names
    assert listed("guard")[0] == "grpo-guard"  # a part of its name
    assert listed("crowd counting", "people")[0] == "papers/crowdvlm-r1"
    assert listed("80/20") == listed("top_entropy_quantile") == ["high-entropy-tokens"]
    assert listed("gspo_token")[0] == "gspo-token"
    assert listed("dppo_tv") == ["dppo-tv"]
    for words in ("reinforce++", "reinforce_plus_plus"):
        assert listed(words) == ["reinforce-plus-plus", "reinforce-plus-plus-baseline"]
    assert "did you mean grpo-guard" in failure("grpo-gard")


def test_search_orders_names_then_uses_then_sentences() -> None:
    entries = [
        Entry(include="", name=name, applies_to="both", against="", use_for=(), texts=texts)
        for name, texts in (
            ("sentence", ((8, "sentence"), (2, "Answers of a length."))),
            ("use", ((8, "use"), (4, "length"))),
            ("named", ((8, "length-grpo"), (1, "lengths"))),
            ("none", ((8, "none"),)),
        )
    ]
    assert [entry.name for entry in search(entries, "lengths")] == ["named", "use", "sentence"]
    assert [entry.name for entry in search(entries, "length answer")] == ["sentence"]
    assert search(entries, "nothing-like-it") == []


def test_search_counts_needs_above_any_number_of_words_of_sentences() -> None:
    entries = [
        Entry(include="", name=name, applies_to="both", against="", use_for=use_for, texts=texts)
        for name, use_for, texts in (
            ("sentences", (), ((8, "sentences"), (2, "Long answers that are verbose."))),
            ("title", ("length",), ((8, "title"), (4, "length"), (2, "Verbose answers."))),
            ("need", ("length",), ((8, "need"), (4, "length"))),
        )
    ]
    assert [entry.name for entry in search(entries, "verbose")] == ["title", "need", "sentences"]
    assert [entry.name for entry in search(entries, "long answers get too long")] == ["title", "need"]
    assert [entry.name for entry in search(entries, "the verbose")] == ["title", "need", "sentences"]


@pytest.mark.parametrize(
    ("query", "first", "absent"),
    [
        ("moe", {"icepop", "gspo", "dppo-kl", "dppo-tv"}, {"mel", "rose", "mapo"}),
        ("dead groups", {"rl-zvp", "dapo", "greso", "prs-vspo"}, {"srpo--unifying-group", "arm"}),
        ("zero-variance", {"rl-zvp", "dapo", "greso", "prs-vspo"}, {"grpo"}),
        ("frac_reward_zero_std", {"rl-zvp", "dapo", "greso", "prs-vspo"}, {"grpo"}),
        ("pass@k", {"pass-k-training"}, {"papers/kg-path-reward"}),
        ("distillation", {"on-policy-distillation"}, {"grpo"}),
        ("loss", set(), {"lora", "listener-rewarded-grpo"}),
    ],
)
def test_other_words_for_a_problem_find_its_methods(query: str, first: set[str], absent: set[str]) -> None:
    names = [entry.name for entry in search(method_entries(), query)]
    assert set(names[: len(first)]) == first
    assert absent.isdisjoint(names)


def test_long_answers_are_the_need_length() -> None:
    entries = search(method_entries(), "long answers get too long")
    needed = ["length" in entry.use_for for entry in entries]
    assert needed == sorted(needed, reverse=True)
    assert {entry.name for entry in entries[: sum(needed)]} == {
        e.name for e in method_entries() if "length" in e.use_for
    }
    assert all(name not in {"canoe", "timesearch-r"} for name in [entry.name for entry in entries][: sum(needed)])


def test_needs_of_other_words_exist_and_find_their_methods() -> None:
    assert set(NEEDS.values()) <= set(USES)
    for words, use in NEEDS.items():
        assert any(use in entry.use_for for entry in search(method_entries(), words)[:3]), words
    for words in SYNONYMS:
        names = {entry.name for entry in search(method_entries(), words)}
        assert names == {entry.name for entry in search(method_entries(), SYNONYMS[words])} != set(), words


def test_methods_for_a_problem_have_its_word() -> None:
    names = listed("--for", "length")
    assert {"gfpo", "delethink", "papers/open-rs"} <= set(names)
    assert set(names) == {entry.name for entry in method_entries() if "length" in entry.use_for}
    denoising = listed("--for", "token-credit", "--policy", "denoising")
    assert set(denoising) == {"g2rpo", "tempflow-grpo", "ppl-position", "process-supervision", "prl", "g-opd"} | {
        "gspo-token",
        "on-policy-distillation",
    }
    assert "tempo" in listed("--for", "token-credit", "--policy", "tokens")
    assert "--for 'entropy' is unknown; use one of baseline, sparse-reward" in failure("--for", "entropy")
    assert "mmgrpo methods entropy" in failure("--for", "entropy")
    hacking = listed("--for", "reward-hacking")
    assert (
        listed("--for", "hacking")
        == listed("--for", "Reward hacking")
        == listed("--for", "overoptimization")
        == hacking
    )
    assert listed("--for", "labels") == listed("--for", "no-labels")
    assert "remove --papers" in failure("--papers", "--for", "length")


def test_every_method_states_its_use() -> None:
    sentences = {row.include: row.method.use_when or "" for row in method_index()}
    assert len(sentences) >= 195
    assert [name for name, text in sentences.items() if not 20 <= len(text) <= 140] == []
    assert [name for name, text in sentences.items() if not (text.startswith("Use it when ") and text[-1] == ".")] == []


def test_included_name_loads() -> None:
    for row in method_index():
        config = load_config(row.include, {"policy": None})
        assert config.about.method is not None
        assert config.about.method == row.method


def test_methods_of_other_packages_are_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped_index = method_index()
    path = install(tmp_path, monkeypatch, THEIRS)
    *first, theirs = method_index()
    assert first == shipped_index
    assert (theirs.include, theirs.method.name) == ("methods/theirs", "theirs")
    assert find_config(theirs.include) == path
    assert theirs.composition == "advantage group; cispo (low None, high 4) by segment; token_mean"
    assert theirs.heading == OTHERS  # it says none
    assert list(by_kind([theirs, *first]))[-1] == OTHERS
    assert theirs.sources == (("objective.surrogate", "cispo (low None, high 4)", "eq. 3"),)
    assert "Deviations:\n\n- None of note.\n\nEvidence:\n\n- By hand." in method_pages([theirs])["others.md"]


def test_file_without_a_method_section_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "rollout: {group_size: 4}\n")
    with pytest.raises(ConfigError, match=r"has no block about\.method"):
        method_index()


def test_source_of_a_key_that_is_not_set_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, THEIRS.replace("objective.surrogate:", "objective.surogate:"))
    with pytest.raises(ConfigError, match=r"no key 'objective\.surogate'"):
        method_index()


def test_pages_have_the_methods_of_a_kind_with_the_source_of_each_value() -> None:
    pages = method_pages(row for row in method_index() if row.include.startswith("methods/"))
    assert set(pages) == {"index.md", *(f"{kind}.md" for kind in KINDS)}
    assert "- [gspo][]: One ratio for a sample, the geometric mean of its token ratios\n" in pages["index.md"]
    assert "- [gfpo][] (T): Generates more members" in pages["index.md"].partition("## length")[2]
    assert "- Against GRPO: One ratio for a sample" in pages["ratios.md"]
    assert "- Needs: rows with `solution`" in pages["off_policy.md"]
    assert (
        "\n## GSPO {#gspo}\n\n`methods/gspo`, [arXiv:2507.18071](https://arxiv.org/abs/2507.18071), "
        in pages["ratios.md"]
    )
    assert "| `objective.ratio_level` | segment | arXiv:2510.21583, the geometric mean" in pages["ratios.md"]
    assert "## GSPO" not in pages["advantages.md"]
    assert len(pages["index.md"].encode()) <= 30_000
