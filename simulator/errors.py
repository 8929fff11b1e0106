"""What the user can get wrong, as one exception: a sentence that names the field, the value and what would be right."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One wrong input: the configuration key, the value given, what it must be, and what to type instead."""

    key: str
    value: object
    must: str
    suggestion: str = ""

    def __str__(self) -> str:
        """One sentence: `deployment.tp=3 must ...; use ...`."""
        hint = f"; {self.suggestion}" if self.suggestion else ""
        return f"{self.key}={self.value} {self.must}{hint}"


class BadInputError(Exception):
    """The input cannot be worked with. Ends the run with exit code 2 and no traceback."""

    def __init__(self, *problems: Problem | str) -> None:
        """Collect every problem that was found, so that a user mends all of them at once."""
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
