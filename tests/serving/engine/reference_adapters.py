"""Adapters of one engine for the reference scheduler, in plain Python, written from their semantics.

- At most ``max_loras`` adapters are on the GPU, and ``adapter_places`` in host memory, which has those on the GPU too.
- A request runs with its adapter on the GPU. The one to go, from the GPU or from host memory, is the one whose last
  request left the batch the longest time ago; of those that left at once the one that has been in its place of host
  memory with the lower number. An empty place is taken first.
- Where neither a slot is empty nor an adapter can go, a request waits: alone, or with all behind it.
- The step that admits a request takes ``adapter_load_us`` longer for an adapter that is not on the GPU, and
  ``adapter_read_us`` more where host memory does not have it.
- A step costs by the number of different adapters of running requests. Where no request has one, a step of up to
  ``launched_tokens`` (with prompts ``launched_prompt_tokens``) tokens costs as with one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Place:
    """A place in host memory."""

    adapter: int | None = None
    on_gpu: bool = False
    users: int = 0
    left_us: float = 0.0


class Adapters:
    """What is where, and what the step that is formed waits for."""

    def __init__(self, limits: Any) -> None:
        self.limits = limits
        self.places = [Place() for _ in range(limits.adapter_places)]
        self.pending_us = 0.0

    def held(self, adapter: int) -> Place | None:
        """The place of an adapter."""
        return next((place for place in self.places if place.adapter == adapter), None)

    def idle(self, places: list[Place]) -> Place | None:
        """The one of the places to empty."""
        unused = [place for place in places if not place.users]
        return min(unused, key=lambda place: (place.adapter is not None, place.left_us), default=None)

    def on_gpu(self) -> list[Place]:
        """The places of adapters on the GPU."""
        return [place for place in self.places if place.on_gpu]

    def may_run(self, adapter: int) -> bool:
        """Whether a request with this adapter could run now; -1: it has none."""
        if adapter < 0 or not self.limits.max_loras:
            return True
        place = self.held(adapter)
        if place and place.on_gpu:
            return True
        return len(self.on_gpu()) < self.limits.max_loras or self.idle(self.on_gpu()) is not None

    def enter(self, adapter: int) -> None:
        """A request with this adapter joins the batch."""
        if adapter < 0 or not self.limits.max_loras:
            return
        place = self.held(adapter)
        if place is None or not place.on_gpu:
            if len(self.on_gpu()) == self.limits.max_loras:
                self.idle(self.on_gpu()).on_gpu = False
            if place is None:
                place = self.idle(self.places)
                place.adapter = adapter
                self.pending_us += self.limits.adapter_read_us
            place.on_gpu = True
            self.pending_us += self.limits.adapter_load_us
        place.users += 1

    def leave(self, adapter: int, now: float) -> None:
        """A request with this adapter leaves the batch."""
        if adapter >= 0 and self.limits.max_loras:
            place = self.held(adapter)
            place.users -= 1
            place.left_us = now

    def in_step(self, tokens: int, prompts: bool) -> int:
        """How many adapters a step of so many tokens pays for."""
        used = sum(place.users > 0 for place in self.places)
        launched = self.limits.launched_prompt_tokens if prompts else self.limits.launched_tokens
        return used or int(tokens <= launched)

    def waited_us(self) -> float:
        """What the step that was formed waits for; once."""
        pending_us, self.pending_us = self.pending_us, 0.0
        return pending_us
