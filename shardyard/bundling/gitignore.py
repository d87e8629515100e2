"""The .gitignore files that decide about a path, as git reads them."""

import os
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

MAX_IGNORE_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """Ignore patterns and the directory that they are relative to."""

    base: str
    patterns: GitIgnoreSpec

    def verdict(self, path: str) -> bool | None:
        """True: ignored; False: included again by a pattern with "!"; None: no rule matches."""
        return self.patterns.check_file(path[len(self.base) + 1 :]).include


def is_ignored(rules: tuple[IgnoreRules, ...], path: str) -> bool:
    """The decision of the innermost rules that match."""
    verdicts = (rule.verdict(path) for rule in reversed(rules))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def read_rules_above(root: str) -> tuple[IgnoreRules, ...]:
    """Rules of the git checkout that `root` is in, from its top down to `root`, exclusive; none outside of one."""
    above = [*map(str, Path(root).parents)]
    top = next((index for index, path in enumerate([root, *above]) if os.path.exists(os.path.join(path, ".git"))), None)
    if top is None:
        return ()
    checkout = [root, *above][top]
    own = _read_rules(checkout, os.path.join(checkout, ".git", "info", "exclude"))
    rules = (*own, *(rule for path in reversed(above[:top]) for rule in read_rules_in(path)))
    return () if is_ignored(rules, f"{root}/") else rules  # an ignored directory that is packed on purpose


def read_rules_in(directory: str) -> list[IgnoreRules]:
    """The rules of the directory's own .gitignore; none where it has no such file."""
    return _read_rules(directory, os.path.join(directory, ".gitignore"))


def _read_rules(base: str, file: str) -> list[IgnoreRules]:
    try:
        # Git ignores a byte order mark, too.
        with open(file, encoding="utf-8-sig", errors="surrogateescape") as lines:
            patterns = lines.read(MAX_IGNORE_FILE_BYTES).split("\n")
    except OSError:
        return []
    return [IgnoreRules(base, GitIgnoreSpec.from_lines(filter(_is_pattern, patterns)))]


def _is_pattern(line: str) -> bool:
    """Whether a line is valid; git ignores the others."""
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True
