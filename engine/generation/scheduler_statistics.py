"""`SchedulerStatistics`: what a `Scheduler` does at a moment."""

from __future__ import annotations

from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """What a scheduler does at a moment.

    Attributes:
        running: the sequences that get tokens.
        waiting: those whose prompts are not computed yet, or not entirely.
        groups: into how many groups the running ones are divided.
        state_bytes: the bytes of the keys and values of the groups.
        prompt_tokens: the tokens of all prompts that have been begun.
        prefix_tokens: how many of these were not computed, since earlier sequences began with them.
        prefix_bytes: the bytes of the keys and values that are kept for that.
        proposed_tokens: how many tokens were proposed, of all sequences so far.
        accepted_tokens: how many of these were chosen.
    """

    running: int = 0
    waiting: int = 0
    groups: int = 0
    state_bytes: int = 0
    prompt_tokens: int = 0
    prefix_tokens: int = 0
    prefix_bytes: int = 0
    proposed_tokens: int = 0
    accepted_tokens: int = 0
