"""What a docstring says about parameters reaches the model, whichever style it is written in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protolink.tools.docstring import Docstring, parse

GOOGLE = """Book a table.

    Asks the restaurant first.

    Args:
        guests (int, optional): How many
            will come.
        name: Under which name.
        **wishes (dict[str, (int)]): Anything else.

    Returns:
        The booking: its number.

    Raises:
        ValueError: When it is full.
    """

NUMPY = """Book a table.

    Asks the restaurant first.

    Parameters
    ----------
    guests : int, optional
        How many
        will come.
    name
        Under which name.
    **wishes
        Anything else.

    Returns
    -------
    str
        The booking: its number.

    Raises
    ------
    ValueError
        When it is full.
    """

SPHINX = """Book a table.

    Asks the restaurant first.

    :param int guests: How many
        will come.
    :param name: Under which name.
    :type name: str
    :param wishes: Anything else.
    :returns: The booking: its number.
    :raises ValueError: When it is full.
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_three_styles_say_the_same(docstring: str) -> None:
    """A team keeps its style; the model is told the same."""
    assert parse(docstring) == Docstring(
        summary="Book a table.\n\nAsks the restaurant first.",
        parameters={"guests": "How many will come.", "name": "Under which name.", "wishes": "Anything else."},
        returns="The booking: its number.",
    )


@pytest.mark.parametrize("docstring", [None, "", "   \n  "])
def test_no_docstring_is_an_empty_one(docstring: str | None) -> None:
    """A function without documentation is still a tool."""
    assert parse(docstring) == Docstring("")


@pytest.mark.parametrize(
    "docstring",
    [
        "Args:",
        "Sum up. Returns: nothing.",
        "The result follows:\n\n    x: 1\n\nand nothing else.",
        "Returns:\nnot indented, so it is prose",
        "A field :like: this is prose.\n\n:unknown: is too",
        "Parameters\n--",
    ],
)
def test_prose_that_resembles_a_section_stays_prose(docstring: str) -> None:
    """Nothing that was written for the model gets lost because it looks like markup."""
    assert parse(docstring).summary == docstring
    assert parse(docstring).parameters == {}


def test_paragraphs_and_lists_of_a_description_are_kept() -> None:
    """Line breaks that carry meaning survive, those of wrapping do not."""
    found = parse("Go.\n\nArgs:\n    how: One\n        of:\n\n        - fast\n        - slow,\n          with care\n")

    assert found.parameters == {"how": "One of:\n\n- fast\n- slow, with care"}


def test_two_names_may_share_a_numpy_description() -> None:
    """NumPy's own style has it."""
    assert parse("Go.\n\nParameters\n----------\nx, y : float\n    Where.\n").parameters == {
        "x": "Where.",
        "y": "Where.",
    }


def test_a_section_for_programmers_is_not_part_of_the_summary() -> None:
    """The model is told what a tool does, not which exceptions its code raises."""
    assert parse("Go.\n\nRaises:\n    OSError: Sometimes.\n\nExamples:\n    >>> go()\n").summary == "Go."


@given(st.lists(st.sampled_from([*GOOGLE.splitlines(), *NUMPY.splitlines(), *SPHINX.splitlines(), ":", "\t", "---"])))
def test_no_text_is_too_odd(lines: list[str]) -> None:
    """A docstring is prose, so it may be anything; a tool is never refused because of it."""
    found = parse("\n".join(lines))

    assert all(name.isidentifier() for name in found.parameters)
