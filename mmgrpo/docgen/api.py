"""The pages of the Python API: which names they show; mkdocstrings reads the docstrings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPage:
    """A page of the API.

    Attributes:
        title: its heading.
        text: its first sentence.
        names: dotted names of the modules, classes and functions on it.
    """

    title: str
    text: str
    names: tuple[str, ...]


_POLICIES = {
    "language": "LanguagePolicy",
    "diffusion": "DenoisingPolicy",
    "image_tokens": "ImageTokensPolicy",
    "masked": "MaskedPolicy",
}

PAGES: Mapping[str, ApiPage] = {
    "training": ApiPage(
        title="Training",
        text="The names that `mmgrpo` exports: `mmgrpo.Trainer` runs a configuration, the others are its parts.",
        names=(),
    ),
    "types": ApiPage(
        title="Types",
        text="The records that policies, rewards and the loop exchange.",
        names=("mmgrpo.types", "mmgrpo.samples", "mmgrpo.scores"),
    ),
    "policies": ApiPage(
        title="Policies",
        text="The contract of a policy, the optional contracts that each add a feature, and the policies of mmgrpo.",
        names=("mmgrpo.policy", *(f"mmgrpo.policies.{package}.{name}" for package, name in _POLICIES.items())),
    ),
    "rewards": ApiPage(
        title="Rewards and environments",
        text="The contracts of rewards and environments. Each [reward](../rewards/index.md) has a page.",
        names=("mmgrpo.reward", "mmgrpo.environment", "mmgrpo.tools"),
    ),
    "testing": ApiPage(
        title="Tests of a policy",
        text="The laws that a policy keeps, as functions to call from your tests.",
        names=("mmgrpo.testing",),
    ),
    "errors": ApiPage(title="Errors", text="Every error of mmgrpo is an `MmgrpoError`.", names=("mmgrpo.errors",)),
}
"""File name without suffix -> page; ``training`` has the exported names."""


def api_pages(exports: Mapping[str, str]) -> dict[str, str]:
    """The pages of the API.

    Args:
        exports: name that ``mmgrpo`` exports -> module that defines it.

    Returns:
        File name -> Markdown, with one directive of mkdocstrings per name.
    """
    index = ["# Python API", "", *(f"- [{page.title}]({name}.md): {page.text}" for name, page in PAGES.items())]
    on_other_pages = {name for page in PAGES.values() for name in page.names}
    exported = [f"{module}.{name}" for name, module in exports.items() if module not in on_other_pages]
    pages = {
        name: _page(page, [*page.names, *(exported if name == "training" else ())]) for name, page in PAGES.items()
    }
    return {"index.md": "\n".join(index) + "\n", **{f"{name}.md": page for name, page in pages.items()}}


def _page(page: ApiPage, names: Iterable[str]) -> str:
    return "\n".join([f"# {page.title}", "", page.text, *(f"\n::: {name}" for name in names)]) + "\n"
