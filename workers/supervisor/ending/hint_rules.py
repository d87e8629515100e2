"""A rule that explains an error: how the error is recognised, and one line of advice."""

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class FailureContext:
    """What is known of the job that failed."""

    devices: int  # how many the job leases, or rehearses
    device_kind: str  # "cpu" or "cuda"
    strategy: str
    rehearsing: bool
    requirements: bool  # the bundle brings a requirements.txt
    is_script: bool = True
    brings_code: bool = True  # a script, or a recipe that names code of a bundle
    traceback: str = ""  # of the error that is to be explained
    network: str = "host"  # none: the job has a loopback of its own, and no more
    pool: str = "default"

    @property
    def on_cuda(self) -> bool:
        return self.device_kind == "cuda"

    @property
    def has_launcher_variables(self) -> bool:
        """Whether the ranks have torchrun's variables."""
        return self.strategy not in ("single", "dp")


AdviceFunction = Callable[[re.Match[str], FailureContext], str]


@dataclass(frozen=True)
class HintRule:
    """`pattern` is searched in the error's own line; `source_pattern`, if any, in the code of the traceback as well."""

    pattern: re.Pattern[str]
    advice: str | AdviceFunction
    source_pattern: re.Pattern[str] | None = None


def make_rule(said: str, advice: str | AdviceFunction, source: str | None = None) -> HintRule:
    return HintRule(re.compile(said), advice, None if source is None else re.compile(source))


def apply_rule(rule: HintRule, line: str, facts: FailureContext) -> str:
    """The advice, or "" where the rule does not match the line."""
    found = rule.pattern.search(line)
    if found is None or (rule.source_pattern is not None and not rule.source_pattern.search(facts.traceback)):
        return ""
    return rule.advice if isinstance(rule.advice, str) else rule.advice(found, facts)
