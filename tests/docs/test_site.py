"""Links of the pages lead to the same thing in the repository and in the site."""

from __future__ import annotations

import pytest

from scripts.site_pages import turned


@pytest.mark.parametrize(
    ("here", "link", "there"),
    [
        ("tools.md", "workers.md#limits", "workers.md#limits"),
        ("tools.md", "../SECURITY.md", "SECURITY.md"),
        ("tools.md", "../README.md#install", "index.md#install"),
        ("tools.md", "../examples/workers.py", "examples/workers.md"),
        ("tools.md", "../examples/", "examples.md"),
        ("reference/tools.md", "../tools.md", "../tools.md"),
        ("reference/tools.md", "../../CHANGELOG.md", "../CHANGELOG.md"),
        ("SECURITY.md", "docs/http.md", "http.md"),
        ("examples/workers.md", "../docs/workers.md", "../workers.md"),
        ("tools.md", "https://semver.org", "https://semver.org"),
        ("tools.md", "#results", "#results"),
    ],
)
def test_a_link_is_turned_from_the_repository_to_the_site(here: str, link: str, there: str) -> None:
    """A reader of either is led to the page, and never to a file that only the other has."""
    assert turned(f"See [it]({link}).", here) == f"See [it]({there})."


def test_a_link_that_leads_nowhere_is_left_for_a_complaint() -> None:
    """MkDocs refuses it by the name that its author wrote."""
    assert turned("See [it](../nowhere.md).", "tools.md") == "See [it](../nowhere.md)."
