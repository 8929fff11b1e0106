"""Lists of module names and patterns, as quantisation tools write them, matched against names of matrices. No torch."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path

from simulator.errors import BadInputError

REGULAR_EXPRESSION = "re:"
LINEAR = "Linear"
"""Class name by which compressed-tensors means every linear layer."""

NOT_IN_STEP = re.compile(
    r"norm|\.gate(?!_)|gate\.|embed|kv_b_proj|eh_proj|e_score_correction_bias|shared_head|vision|visual|projector|mtp"
)
"""Parts of names of modules that are no matrix of a recipe: lists may name them, and change nothing."""


@dataclass(frozen=True, kw_only=True)
class NamePatterns:
    """What a list of names and patterns speaks of."""

    exact: frozenset[str]
    inside: bool
    """Whether a module's name stands for everything inside it too."""
    wild: Sequence[tuple[str, re.Pattern[str]]] = ()
    """Patterns as written, and compiled to match a name from its start."""

    @property
    def texts(self) -> list[str]:
        """All entries, as written."""
        return [*self.exact, *(text for text, _ in self.wild)]

    def matches(self, name: str) -> bool:
        """Whether the list speaks of the matrix `name`."""
        if name in self.exact or LINEAR in self.exact:
            return True
        if self.inside and not self.exact.isdisjoint(ancestors(name)):
            return True
        return any(pattern.match(name) for _, pattern in self.wild)

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """Entries, as written, that speak of none of `names`."""
        names = list(names)
        spoken_of = {LINEAR, *names}
        if self.inside:
            spoken_of.update(module for name in names for module in ancestors(name))
        found = [text for text, pattern in self.wild if not any(map(pattern.match, names))]
        return sorted(self.exact - spoken_of) + found


def ancestors(name: str) -> Iterator[str]:
    """The modules that hold a module, from the nearest on."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def module_globs(texts: Iterable[str]) -> NamePatterns:
    """ModelOpt's rule: an entry names a module, perhaps with wildcards, and everything inside it."""
    texts = list(texts)
    wild = [text for text in texts if any(letter in text for letter in "*?[")]
    compiled = [(text, re.compile(f"(?:{translate(text)})|(?:{translate(f'{text}.*')})")) for text in wild]
    return NamePatterns(exact=frozenset(texts) - frozenset(wild), inside=True, wild=compiled)


def targets(texts: Iterable[str], source: Path) -> NamePatterns:
    """compressed-tensors' rule: a class name, exactly a module's name, or `re:` and an expression from the start.

    Raises:
        BadInputError: an entry is no regular expression.
    """
    exact, wild = set(), []
    for text in texts:
        if not text.startswith(REGULAR_EXPRESSION):
            exact.add(text)
            continue
        try:
            wild.append((text, re.compile(text.removeprefix(REGULAR_EXPRESSION))))
        except (re.error, OverflowError, RecursionError) as error:
            raise BadInputError(f"{source}: {text!r} is no regular expression: {error}") from None
    return NamePatterns(exact=frozenset(exact), inside=False, wild=wild)


def unknown_entries(entries: Iterable[str], num_layers: int) -> list[str]:
    """Entries that should name a matrix and do not, layers written as N; those of known other modules are left out."""
    found: dict[str, int] = {}
    for text in entries:
        layer = re.search(r"layers\\?\.(\d+)", text)
        if NOT_IN_STEP.search(text) or (layer and int(layer[1][:9]) >= num_layers):
            continue
        general = re.sub(r"(layers\\?\.)\d+", r"\1N", text)
        found[general] = found.get(general, 0) + 1
    return [f"{text} ({count} times)" if count > 1 else text for text, count in found.items()]
