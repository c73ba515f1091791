"""The surveyed papers and their state.

``configs/papers.jsonl`` has a line per paper. A paper has a file if a file has its name or its arXiv number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from mmgrpo.config import POLICIES
from mmgrpo.config.loading import CONFIGS, find_config, shipped
from mmgrpo.config.registry import suggestion
from mmgrpo.config.sections import Section
from mmgrpo.config.validating import explain_validation
from mmgrpo.docgen.methods import MethodRow, method_index
from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.system.yamls import parse_yaml

LEDGER = CONFIGS / "papers.jsonl"

RUNS = ("recipes", "papers")
"""Folders of complete runs."""

TIERS = ("core", "recipe", "extension")

State = Literal["file", "setting", "open"]
STATES: tuple[State, ...] = ("file", "setting", "open")

GROUPS: Mapping[str, tuple[str, str | None]] = {
    "none": ("No new function", "advantage, objective, rewards"),
    "advantage_fn": ("Advantages of a group", "advantage.scale"),
    "surrogate_fn": ("Surrogates", "objective.surrogate"),
    "ratio_level_fn": ("Ratio levels", "objective.ratio_level"),
    "selection_fn": ("Selections of decisions", "objective.selections"),
    "aggregate_fn": ("Aggregates of a loss", "objective.aggregate"),
    "sampler_fn": ("Samplers of denoising policies", "policy.sampler"),
    "peft_setting": ("Adapters other than LoRA and DoRA", None),
    "reward_group": ("Rewards of complete groups", "rewards"),
    "reward_task": ("Verifiers of a task", "rewards"),
    "reward_judge_text": ("Judges of texts", "rewards"),
    "reward_model_scalar": ("Reward models of texts, and served solvers", "rewards"),
    "reward_execution": ("Rewards that execute", "rewards"),
    "scoped_rewards": ("Rewards of spans, steps and ranks", "advantage.estimators"),
    "decision_credit": ("Credit of each decision", "advantage.estimators"),
    "sample_filter": ("Filters of group members", "advantage.filters"),
    "group_losses": ("Losses of complete groups", "objective.terms"),
    "decision_numbers": ("Bounds and weights of single decisions", "objective.modulations"),
    "aux_losses": ("Auxiliary losses", "objective.auxiliary"),
    "views": ("The same tokens under other weights or another prompt", "objective.views"),
    "vocab_terms": ("Terms of the full token distribution", "objective.terms, objective.modulations"),
    "rounds": ("Rollouts in rounds, groups of any size", "rollout.strategy"),
    "forest": ("Trees: shared prefixes, branches and exits", "rollout.tree, rollout.strategy"),
    "contexts": ("Separate prompts for group members", "rollout.prompt_templates"),
    "foreign_members": ("Off-policy rows", "objective.off_policy"),
    "prompt_state": ("Statistics of prompts, and sampling by them", "prompts.sampler"),
    "prompt_mixture": ("Several prompt sources", "prompts.sources"),
    "schedules": ("Settings that change over the run", "schedules"),
    "reference_update": ("Reference updates", "update.reference"),
    "forward_process": ("Losses on re-noised samples", "rollout.training_states"),
    "trainer_hooks": ("Optimizer step and weights", "update.hooks"),
    "multi_turn": ("Turns, tools and environments", "rollout.environment"),
    "staged_rollouts": ("Rollouts of several calls: proposer and solver, drafts, chunks", None),
    "critic": ("A learned value function", "critic"),
    "policy_handle": ("Rewards computed by the policy", None),
    "internals": ("Hidden states, attention maps, curvature", None),
    "policy_masked": ("Policies of masked tokens", "policy.name: masked, policy.reading"),
    "policy_image_tokens": ("Policies of image tokens", "policy.name: image_tokens"),
    "policy_audio": ("Audio policies", "policy.model and the audio of prompts"),
    "policy_robotics": ("Policies in robot environments", "policy.name"),
    "policy_other": ("Other policies", None),
    "data_pipeline": ("Data generated outside a run", None),
    "scale": ("Engines for sampling at scale", None),
}
"""Contribution of papers -> heading, and the configuration key of its functions; None: not supported yet."""

PREAMBLE = """# Papers

`mmgrpo methods --papers` prints this list, `mmgrpo methods --paper ID` a paper of it.

A paper with a *file* is implemented by that file; [methods](methods/index.md) has the source of each value and the
deviations. A *setting* needs no file: the row has the settings, and the parts that they do not cover. The row of an
*open* paper has its contribution: if every group that it needs has a configuration key, the paper needs a function
and a YAML ([extending](../how-to/extending.md)); otherwise the engine does not support it yet. Core papers are
objectives and rollouts, recipes are data, rewards and stages, extensions are further from GRPO.

A new file completes the row of its paper if it has its name, or its arXiv number if the row has one. The state in the
row is then ignored.
"""


class PaperRow(Section):
    """A line of the ledger."""

    id: str
    title: str
    tier: Literal["core", "recipe", "extension"]
    arxiv: str | None = Field(default=None, description="arXiv number, if no file of that name has it")
    group: str = Field(description="main contribution, a key of GROUPS")
    studied_on: str = Field(description="kind of model in its experiments")
    needs: tuple[str, ...] = Field(default=(), description="required groups, keys of GROUPS")
    files: tuple[str, ...] = Field(default=(), description="files without its name and number")
    setting: str | None = Field(default=None, description="settings that implement it, if it needs no file")
    leaves_out: str | None = Field(default=None, description="parts that the setting does not cover")
    adds: str | None = Field(default=None, description="contribution that no setting covers")
    code: str | None = Field(default=None, description="source of its formula: repository and file")
    unread: bool = Field(default=False, description="its formula was not read, in the paper or in its code")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper and its files.

    Attributes:
        row: its line in the ledger.
        files: names of its files.
        arxiv: arXiv number; empty if it is not recorded.
        applies_to: the policies that its files are for, in words; without a file, those of its experiments.
        evidence: checks of its files.
    """

    row: PaperRow
    files: tuple[str, ...]
    arxiv: str
    applies_to: str
    evidence: tuple[str, ...]

    @property
    def state(self) -> State:
        """The state of the paper."""
        if self.files:
            return "file"
        return "setting" if self.row.setting else "open"

    @property
    def lacks(self) -> tuple[str, ...]:
        """The groups that it needs and that the engine does not support."""
        return tuple(name for name in self.row.needs if GROUPS[name][1] is None)


def ledger(path: Path = LEDGER) -> list[PaperRow]:
    """The rows of the ledger.

    Args:
        path: path of the file.

    Returns:
        A row per paper, in the order of the file.

    Raises:
        ConfigError: a line is no valid row, or names an unknown group.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [_parse_row(f"{path.name}, line {number}", line) for number, line in enumerate(lines, 1)]
    for row in rows:
        for name in {row.group, *row.needs} - set(GROUPS):
            raise ConfigError(f"{path.name}: {row.id} has no group {name!r}{suggestion(name, GROUPS)}")
    return rows


def paper_index(methods: Iterable[MethodRow] | None = None, *, rows: Iterable[PaperRow] | None = None) -> list[Paper]:
    """The papers of the ledger with their files.

    Args:
        methods: rows of the method index; None: all methods.
        rows: rows of a ledger; None: of the shipped one.

    Returns:
        A paper per row of the ledger.
    """
    method_rows = method_index() if methods is None else methods
    files = [_file(row) for row in method_rows]
    files += [_run_file(name) for folder in RUNS for name in shipped(folder)]
    return [_paper(row, files) for row in (ledger() if rows is None else rows)]


def unlisted(papers: Iterable[Paper], methods: Iterable[MethodRow]) -> list[MethodRow]:
    """Methods whose paper is not in the ledger."""
    includes = {include for paper in papers for include in paper.files}
    return [method for method in methods if method.include not in includes]


def by_group(papers: Iterable[Paper]) -> dict[str, list[Paper]]:
    """The papers by the group of their main contribution, without empty groups."""
    members_by_group: dict[str, list[Paper]] = {name: [] for name in GROUPS}
    for paper in papers:
        members_by_group[paper.row.group].append(paper)
    return {name: members for name, members in members_by_group.items() if members}


def counts(papers: Iterable[Paper]) -> list[tuple[str, ...]]:
    """Rows of a table: group, number of papers per tier, number per state; the last row has the totals."""
    groups = by_group(papers)
    rows = [_count_row(name, members) for name, members in groups.items()]
    return [*rows, _count_row("all", [paper for members in groups.values() for paper in members])]


def summary(papers: Iterable[Paper]) -> str:
    """The counts in a sentence, and the number of open papers that the engine does not support."""
    papers = list(papers)
    states = Counter(paper.state for paper in papers)
    missing = sum(paper.state == "open" and bool(paper.lacks) for paper in papers)
    return (
        f"{len(papers)} papers: {states['file']} have a file, {states['setting']} are a setting, {states['open']} are "
        f"open, of which {missing} need a feature that the engine does not have yet."
    )


HEAD = ("group", *TIERS, *STATES)
"""Columns of ``counts``."""


def state_text(paper: Paper) -> str:
    """The state of a paper, in one line."""
    row = paper.row
    if paper.files:
        return ", ".join(paper.files)
    if row.setting:
        return f"setting: {row.setting}" + (f"; leaves out: {row.leaves_out}" if row.leaves_out else "")
    unread = " Its formula has not been read yet." if row.unread else ""
    lacks = f" Not supported yet: {', '.join(paper.lacks)}." if paper.lacks else ""
    return f"open: {row.adds}.{lacks}{unread}"


def paper_section(name: str) -> str:
    """The section of a paper.

    Args:
        name: id or arXiv number of the paper, or those of a method whose paper is not in the ledger.

    Returns:
        Markdown.

    Raises:
        UnknownNameError: there is no such paper; the message lists ids that contain the name.
    """
    methods = method_index()
    papers, query = paper_index(methods), name.lower()
    for paper in papers:
        if query in (paper.row.id.lower(), paper.arxiv):
            return "\n".join(_section(paper)) + "\n"
    for row in unlisted(papers, methods):
        if query in (row.method.name.lower(), row.method.paper):
            return f"## {row.method.title}\n\n{_unlisted(row)}, is not in the survey.\n"
    near = ", ".join(paper.row.id for paper in papers if query in paper.row.id.lower())
    hint = f"there are {near}" if near else "mmgrpo methods --papers lists them"
    raise UnknownNameError(f"no paper {name!r}; {hint}")


def papers_page(papers: Iterable[Paper], others: Iterable[MethodRow]) -> str:
    """The ledger as a Markdown page.

    Args:
        papers: papers of the ledger.
        others: methods whose paper is not in the ledger.

    Returns:
        Counts, a table per group, and the others.
    """
    papers = list(papers)
    lines = [PREAMBLE, "## How many", "", summary(papers), "", f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    lines += [f"| {' | '.join(row)} |" for row in counts(papers)]
    for name, members in by_group(papers).items():
        lines += ["", f"## {name}", "", f"{group_text(name)}.", "", "| id | paper | tier | state |", "|" + " --- |" * 4]
        lines += [f"| `{p.row.id}` | {_title_link(p)} | {p.row.tier} | {_cell(state_text(p))} |" for p in members]
    lines += ["", "## Other papers", "", "Files of papers outside of the survey.", ""]
    lines += [f"- {_unlisted(method)}" for method in others]
    return "\n".join(lines) + "\n"


def _unlisted(row: MethodRow) -> str:
    where = f"arXiv:{row.method.paper}" if row.method.paper else "not published"
    return f"`{row.include}`: {row.method.title}, {where}"


def group_text(group: str) -> str:
    """The contribution of a group of papers, and its configuration key."""
    heading, key = GROUPS[group]
    return f"{heading}; {'not supported yet' if key is None else f'set in {key}'}"


def _parse_row(where: str, line: str) -> PaperRow:
    try:
        return PaperRow.model_validate_json(line)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain_validation(error, PaperRow)}") from None


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a paper: its include name, name, arXiv number, kinds of policies and evidence."""

    include: str
    name: str
    number: str
    applies_to: str
    evidence: tuple[str, ...]


def _file(row: MethodRow) -> _File:
    method = row.method
    return _File(row.include, method.name, method.paper or "", POLICIES[method.applies_to], method.evidence)


def _run_file(include: str) -> _File:
    """The file of a complete run, without the values that it includes."""
    values = parse_yaml(find_config(include).read_text(encoding="utf-8"))
    section = values.get("recipe") or values.get("method") or {}
    return _File(
        include, include.rpartition("/")[2], section.get("paper") or "", "", tuple(section.get("evidence", ()))
    )


def _is_of(row: PaperRow, arxiv: str, file: _File) -> bool:
    """Whether a file is of a paper: by number if both have one, because papers share names, else by name."""
    return file.number == arxiv if file.number and arxiv else file.name == row.id


def _paper(row: PaperRow, files: list[_File]) -> Paper:
    arxiv = row.arxiv or next((file.number for file in files if file.name == row.id), "")
    paper_files = [file for file in files if _is_of(row, arxiv, file)]
    policies = {file.applies_to for file in paper_files if file.applies_to}
    return Paper(
        row=row,
        files=(*(file.include for file in paper_files), *row.files),
        arxiv=arxiv,
        applies_to=POLICIES["both"] if len(policies) > 1 else next(iter(policies), _studied_policy(row)),
        evidence=tuple(item for file in paper_files for item in file.evidence),
    )


def _studied_policy(row: PaperRow) -> str:
    is_generator = row.studied_on in ("image-gen", "video-gen") and not row.group.startswith("policy_")
    return POLICIES["denoising" if is_generator else "tokens"]


def _count_row(name: str, papers: list[Paper]) -> tuple[str, ...]:
    tiers, states = Counter(paper.row.tier for paper in papers), Counter(paper.state for paper in papers)
    return (name, *(str(tiers[tier]) for tier in TIERS), *(str(states[state]) for state in STATES))


def _section(paper: Paper) -> Iterator[str]:
    row = paper.row
    yield from (f"## {row.title}", "", f"`{row.id}`, {row.tier}, {paper.applies_to}, studied on {row.studied_on}.")
    if paper.arxiv:
        yield f"arXiv:{paper.arxiv}."
    yield from ("", f"- {state_text(paper)}")
    yield from (f"- needs `{name}`: {group_text(name)}" for name in row.needs)
    if row.code:
        yield f"- source of its formula: {row.code}"
    yield from (f"- checked: {evidence}" for evidence in paper.evidence)


def _title_link(paper: Paper) -> str:
    title = _cell(paper.row.title)
    return f"[{title}](https://arxiv.org/abs/{paper.arxiv})" if paper.arxiv else title


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
