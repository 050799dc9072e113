"""Weighted choice that still shrinks to the first value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


def weighted(*choices: tuple[T, int]) -> SearchStrategy[T]:
    """One of `choices`, (value, weight), simplest first.

    A single choice, so that a shrinker walks the values in their order: `one_of` branches would strand it at the
    least value of a branch. Keep the weights' sum below 256, up to which Hypothesis samples evenly.
    """
    values = [value for value, weight in choices for _ in range(weight)]
    return st.sampled_from(values) if len(values) > 1 else st.just(values[0])


def restricted(choices: Iterable[tuple[T, int]], allowed: frozenset[str]) -> SearchStrategy[T]:
    """`weighted` of those `choices` that are in `allowed`."""
    return weighted(*((value, weight) for value, weight in choices if value in allowed))
