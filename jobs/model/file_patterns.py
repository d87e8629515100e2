"""Patterns that select files of a working directory, written as in .gitignore (`program.keep`).

The last pattern that matches a file, or a directory above it, decides: the file is kept, or with "!" in front of the
pattern left out. Where the first pattern has a "!", everything that no pattern matches is kept.
"""

from collections.abc import Callable, Sequence


def is_valid(pattern: str) -> bool:
    """Whether it is a pattern that can match anything."""
    from pathspec import PathSpec  # only for the few specs that have patterns

    try:
        compiled = PathSpec.from_lines("gitignore", [pattern])
    except ValueError:
        return False
    return any(one.include is not None for one in compiled.patterns)


def compile_patterns(patterns: Sequence[str]) -> Callable[[str], bool]:
    """A function from the path of a file to whether the patterns keep it."""
    from pathspec import PathSpec

    if not patterns:
        return lambda path: False
    everything = ["**"] if patterns[0].startswith("!") else []
    return PathSpec.from_lines("gitignore", [*everything, *patterns]).match_file
