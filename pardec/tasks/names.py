"""The names of people in the problems."""

from __future__ import annotations

# name -> pronouns as subject and as object
PEOPLE: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("Anna", "Maria", "Ella", "Nina", "Rosa", "Sara", "Lena", "Olga"), ("she", "her")),
    **dict.fromkeys(("Tom", "Ben", "Max", "Omar", "Paul", "Ravi", "Leo", "Hugo"), ("he", "him")),
}
