"""The papers of the survey, and how far each is in: ``python -m mmgrpo.docgen.papers > docs/papers.md``.

``configs/papers.jsonl`` has a line for each. That a paper has a file is read off the files: one of its name, or
one that says its arXiv number.
"""

from __future__ import annotations

import sys
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
"""Folders of whole runs."""

TIERS = ("core", "recipe", "extension")

State = Literal["file", "setting", "open"]
STATES: tuple[State, ...] = ("file", "setting", "open")

GROUPS: Mapping[str, tuple[str, str | None]] = {
    "none": ("Nothing that is not there", "advantage, objective, rewards"),
    "advantage_fn": ("Advantages of a group", "advantage.scale"),
    "surrogate_fn": ("Surrogates", "objective.surrogate"),
    "ratio_level_fn": ("Levels of the ratio", "objective.ratio_level"),
    "selection_fn": ("Selections of decisions", "objective.selections"),
    "aggregate_fn": ("Means of a loss", "objective.aggregate"),
    "sampler_fn": ("Samplers, of denoisers alone", "policy.sampler"),
    "peft_setting": ("Adapters other than LoRA and DoRA", None),
    "reward_group": ("Rewards of a whole group", "rewards"),
    "reward_task": ("Verifiers of a task", "rewards"),
    "reward_judge_text": ("Judges of texts", "rewards"),
    "reward_model_scalar": ("Reward models of texts, and served solvers", "rewards"),
    "reward_execution": ("Rewards that execute", "rewards"),
    "scoped_rewards": ("Rewards of spans, steps and ranks", "advantage.estimators"),
    "decision_credit": ("What each decision is worth", "advantage.estimators"),
    "sample_filter": ("Which members train", "advantage.filters"),
    "group_losses": ("Losses of a whole group", "objective.terms"),
    "decision_numbers": ("Bounds and weights of single decisions", "objective.modulations"),
    "aux_losses": ("Losses beside the objective", "auxiliary"),
    "views": ("The same tokens under other weights or another prompt", "views"),
    "vocab_terms": ("What the distribution says beyond the drawn token", "objective.terms, objective.modulations"),
    "rounds": ("Rollouts in rounds, groups of any size", "rollout.strategy"),
    "forest": ("Trunks, branches and exits", "rollout.tree, rollout.strategy"),
    "contexts": ("Members in contexts of their own", "rollout.prompt_templates"),
    "foreign_members": ("Rows that the policy of now did not draw", "objective.off_policy"),
    "prompt_state": ("What is remembered of prompts, and sampling by it", "prompts.sampler"),
    "prompt_mixture": ("Several prompt sources", "prompts.sources"),
    "schedules": ("Numbers that change over the run", "schedules"),
    "reference_update": ("References that move", "reference"),
    "forward_process": ("Losses on samples that are noised again", "rollout.training_states"),
    "trainer_hooks": ("The optimiser's step and the weights", "update.hooks"),
    "multi_turn": ("Turns, tools and environments", "rollout.environment"),
    "staged_rollouts": ("Rollouts of several calls: proposer and solver, drafts, chunks", None),
    "critic": ("A learned value of states", "critic"),
    "policy_handle": ("Rewards that ask the policy itself", None),
    "internals": ("Hidden states, attention maps, curvature", None),
    "policy_masked": ("Policies of masked tokens", "policy.name: masked, policy.reading"),
    "policy_image_tokens": ("Policies of image tokens", "policy.name: image_tokens"),
    "policy_audio": ("Policies that hear", "policy.model and the sounds of prompts"),
    "policy_robotics": ("Policies in robots' environments", "policy.name"),
    "policy_other": ("Policies that are one of a kind", None),
    "data_pipeline": ("Data made outside a run", None),
    "scale": ("Engines for sampling at scale", None),
}
"""What papers add, by name: heading, and the key of a run where its functions go; None: it has no place yet."""

PREAMBLE = """# Papers

Generated from `configs/papers.jsonl` and the YAML files by `python -m mmgrpo.docgen.papers > docs/papers.md`. On the
command line: `mmgrpo methods --papers`, of one `mmgrpo methods --paper ID`.

A paper that has a *file* is included by it; [methods](methods.md) has the source of each value and what the file does
otherwise. A *setting* needs none: its line says what to set, and what that leaves out. What is *open* says what the
paper adds: where the groups that it needs have their place, that is a function, a line in a registry and a YAML
([extending](extending.md)); where one has none, it is missing from the engine. Core are the objectives and rollouts,
recipes are data, rewards and stages over them, extensions are further from GRPO.

A new file closes its paper's row by having its name, or its arXiv number where the row says one. What its row says of
it counts for nothing from then on.
"""


class PaperRow(Section):
    """A line of the ledger."""

    id: str
    title: str
    tier: Literal["core", "recipe", "extension"]
    arxiv: str | None = Field(default=None, description="where no file of the paper's own name says it")
    group: str = Field(description="of GROUPS: what it adds first of all")
    studied_on: str = Field(description="kind of model in its experiments")
    needs: tuple[str, ...] = Field(default=(), description="of GROUPS")
    files: tuple[str, ...] = Field(default=(), description="those that have neither its name nor its number")
    setting: str | None = Field(default=None, description="what to set, if that is all")
    leaves_out: str | None = Field(default=None, description="what the setting does not cover")
    adds: str | None = Field(default=None, description="what the engine is not told by any setting")
    code: str | None = Field(default=None, description="where its formula was read: repository and file")
    unread: bool = Field(default=False, description="its formula was not read, in the paper or in its code")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper, and how far it is in.

    Attributes:
        row: its line in the ledger.
        files: what includes it.
        arxiv: its number; empty if nobody wrote it down.
        applies_to: the policies that its files are for, in words; without one, what it was studied on.
        evidence: what was checked of its files.
    """

    row: PaperRow
    files: tuple[str, ...]
    arxiv: str
    applies_to: str
    evidence: tuple[str, ...]

    @property
    def state(self) -> State:
        """How far it is in."""
        if self.files:
            return "file"
        return "setting" if self.row.setting else "open"

    @property
    def lacks(self) -> tuple[str, ...]:
        """The groups that it needs and that have no place in the engine."""
        return tuple(name for name in self.row.needs if GROUPS[name][1] is None)


def ledger(path: Path = LEDGER) -> list[PaperRow]:
    """The lines of the ledger.

    Args:
        path: of the file.

    Returns:
        One row a paper, in the order of the file.

    Raises:
        ConfigError: a line is no row, or names a group that there is not.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [_parse_row(f"{path.name}, line {number}", line) for number, line in enumerate(lines, 1)]
    for row in rows:
        for name in {row.group, *row.needs} - set(GROUPS):
            raise ConfigError(f"{path.name}: {row.id} has no group {name!r}{suggestion(name, GROUPS)}")
    return rows


def paper_index(methods: Iterable[MethodRow] | None = None) -> list[Paper]:
    """The papers of the ledger, with the files that they have.

    Args:
        methods: of the index; None: those that are shipped and those of other packages.

    Returns:
        One a line of the ledger.
    """
    method_rows = method_index() if methods is None else methods
    files = [_file(row) for row in method_rows]
    files += [_run_file(name) for folder in RUNS for name in shipped(folder)]
    return [_paper(row, files) for row in ledger()]


def unlisted(papers: Iterable[Paper], methods: Iterable[MethodRow]) -> list[MethodRow]:
    """Methods whose paper has no line in the ledger."""
    includes = {include for paper in papers for include in paper.files}
    return [method for method in methods if method.include not in includes]


def by_group(papers: Iterable[Paper]) -> dict[str, list[Paper]]:
    """The papers by the group that each adds first of all; groups without one are left out."""
    members_by_group: dict[str, list[Paper]] = {name: [] for name in GROUPS}
    for paper in papers:
        members_by_group[paper.row.group].append(paper)
    return {name: members for name, members in members_by_group.items() if members}


def counts(papers: Iterable[Paper]) -> list[tuple[str, ...]]:
    """Rows of a table: group, how many papers of each tier, how many in each state; the last row sums up."""
    groups = by_group(papers)
    rows = [_count_row(name, members) for name, members in groups.items()]
    return [*rows, _count_row("all", [paper for members in groups.values() for paper in members])]


def summary(papers: Iterable[Paper]) -> str:
    """The counts in a sentence, and of those that are open, how many the engine has no place for."""
    papers = list(papers)
    states = Counter(paper.state for paper in papers)
    missing = sum(paper.state == "open" and bool(paper.lacks) for paper in papers)
    return (
        f"{len(papers)} papers: {states['file']} have a file, {states['setting']} are a setting, {states['open']} are "
        f"open, of which {missing} need something that has no place in the engine yet."
    )


HEAD = ("group", *TIERS, *STATES)
"""Columns of ``counts``."""


def state_text(paper: Paper) -> str:
    """How far a paper is in, in one line."""
    row = paper.row
    if paper.files:
        return ", ".join(paper.files)
    if row.setting:
        return f"setting: {row.setting}" + (f"; leaves out: {row.leaves_out}" if row.leaves_out else "")
    unread = " Its formula is to be read first." if row.unread else ""
    lacks = f" No place yet for: {', '.join(paper.lacks)}." if paper.lacks else ""
    return f"open: {row.adds}.{lacks}{unread}"


def paper_section(name: str) -> str:
    """What is known of one paper.

    Args:
        name: its id or its arXiv number, or those of a method that is outside of the ledger.

    Returns:
        Markdown.

    Raises:
        UnknownNameError: there is none; those whose id holds the name are named.
    """
    methods = method_index()
    papers, query = paper_index(methods), name.lower()
    for paper in papers:
        if query in (paper.row.id.lower(), paper.arxiv):
            return "\n".join(_section(paper)) + "\n"
    for row in unlisted(papers, methods):
        if query in (row.method.name.lower(), row.method.paper):
            return f"## {row.method.title}\n\n{_unlisted(row)}, is not among the papers that were surveyed.\n"
    near = ", ".join(paper.row.id for paper in papers if query in paper.row.id.lower())
    hint = f"there are {near}" if near else "mmgrpo methods --papers lists them"
    raise UnknownNameError(f"no paper {name!r}; {hint}")


def papers_page(papers: Iterable[Paper], others: Iterable[MethodRow]) -> str:
    """The ledger as a page of Markdown.

    Args:
        papers: those of the ledger.
        others: methods whose paper is not among them.

    Returns:
        Counts, a table for each group, and the others.
    """
    papers = list(papers)
    lines = [PREAMBLE, "## How many", "", summary(papers), "", f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    lines += [f"| {' | '.join(row)} |" for row in counts(papers)]
    for name, members in by_group(papers).items():
        lines += ["", f"## {name}", "", f"{place_text(name)}.", "", "| id | paper | tier | state |", "|" + " --- |" * 4]
        lines += [f"| `{p.row.id}` | {_title_link(p)} | {p.row.tier} | {_cell(state_text(p))} |" for p in members]
    lines += ["", "## Not among them", "", "Files of papers that were not part of the survey.", ""]
    lines += [f"- {_unlisted(method)}" for method in others]
    return "\n".join(lines) + "\n"


def _unlisted(row: MethodRow) -> str:
    where = f"arXiv:{row.method.paper}" if row.method.paper else "not published"
    return f"`{row.include}`: {row.method.title}, {where}"


def place_text(group: str) -> str:
    """What a group of papers adds, and where that goes."""
    heading, place = GROUPS[group]
    return f"{heading}; {'no place yet' if place is None else f'set in {place}'}"


def _parse_row(where: str, line: str) -> PaperRow:
    try:
        return PaperRow.model_validate_json(line)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain_validation(error, PaperRow)}") from None


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a paper: what includes it, its name, its arXiv number, whom it is for and what was checked of it."""

    include: str
    name: str
    number: str
    applies_to: str
    evidence: tuple[str, ...]


def _file(row: MethodRow) -> _File:
    method = row.method
    return _File(row.include, method.name, method.paper or "", POLICIES[method.applies_to], method.evidence)


def _run_file(include: str) -> _File:
    """What a run's file itself says, not what it includes."""
    values = parse_yaml(find_config(include).read_text(encoding="utf-8"))
    section = values.get("recipe") or values.get("method") or {}
    return _File(
        include, include.rpartition("/")[2], section.get("paper") or "", "", tuple(section.get("evidence", ()))
    )


def _is_of(row: PaperRow, arxiv: str, file: _File) -> bool:
    """The number decides where both have one; several papers have a name in common."""
    return file.number == arxiv if file.number and arxiv else file.name == row.id


def _paper(row: PaperRow, files: list[_File]) -> Paper:
    arxiv = row.arxiv or next((file.number for file in files if file.name == row.id), "")
    own_files = [file for file in files if _is_of(row, arxiv, file)]
    policies = {file.applies_to for file in own_files if file.applies_to}
    return Paper(
        row=row,
        files=(*(file.include for file in own_files), *row.files),
        arxiv=arxiv,
        applies_to=POLICIES["both"] if len(policies) > 1 else next(iter(policies), _studied_policy(row)),
        evidence=tuple(item for file in own_files for item in file.evidence),
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
    yield from (f"- needs `{name}`: {place_text(name)}" for name in row.needs)
    if row.code:
        yield f"- its formula was read in {row.code}"
    yield from (f"- checked: {evidence}" for evidence in paper.evidence)


def _title_link(paper: Paper) -> str:
    title = _cell(paper.row.title)
    return f"[{title}](https://arxiv.org/abs/{paper.arxiv})" if paper.arxiv else title


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    OWN = [method for method in method_index() if method.include.startswith("methods/")]
    PAPERS = paper_index(OWN)
    sys.stdout.write(papers_page(PAPERS, unlisted(PAPERS, OWN)))
