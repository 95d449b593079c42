"""A run's turn on its device: decide, wait in that device's line, decide again, and change lines where the answer changed.

A run over several GPUs needs a place in several lines. It enters them one after the other, in the order of their keys, and keeps what it
has: all runs do so in the same order, so no two ever wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from app.cae.config import CaeConfig
from app.core.profile import HardwareProfile
from app.runs import sentences
from app.runs.devices import CPU, DeviceChoice, choice_of, choose_device, is_free, run_is_over, wait_for_ended_runs
from app.runs.folder import RunFolder
from app.runs.queue import Line, Place
from app.runs.recorder import Recorder

_POLL_S = 0.25
_LOOK_S = 1.0
"""How often a run that waits looks whether another GPU has become free."""
_MOVES_LIMIT = 5
"""A GPU whose free memory swings around the threshold must not send a run from line to line for ever."""
_VRAM_RETURNS_S = 3.0
"""How long the driver may take to give back the memory of a process that has ended."""

_kept: list[Place] = []
"""Places on GPUs that last until this process ends, because its VRAM does too."""


class Turn:
    """One run's way through the lines."""

    def __init__(self, run: RunFolder, config: CaeConfig, recorder: Recorder, echo: Callable[[str], None]) -> None:
        self._run = run
        self._config = config
        self._recorder = recorder
        self._echo = echo
        self._places: tuple[Place, ...] = ()
        recorder.on_tick.append(self._touch)

    @property
    def keys(self) -> tuple[str, ...]:
        """The lines in which this run has its place."""
        return tuple(place.line.key for place in self._places)

    def wait(self) -> bool:
        """Wait for this run's turn. False when it was cancelled meanwhile.

        Raises:
            OptionError: the configuration names a device that does not exist.
            RunError: the folder of the queue cannot be written to.
        """
        _leave_kept()
        if self._config.device != CPU:
            wait_for_ended_runs(run_is_over, self._recorder.cancelled)
        choice = self._decide()
        for _ in range(_MOVES_LIMIT):
            choice, waited = self._stand_in(choice)
            if self._recorder.cancelled():
                return False
            again = self._decide_again(choice) if waited else choice
            if again.keys == choice.keys:
                return True
            self._moved(choice, again)
            choice = again
        self._stand_in(choice)
        return not self._recorder.cancelled()

    def settle(self, profile: HardwareProfile) -> None:
        """Called when TensorFlow is up: where it uses another device than the one waited for, wait for that one's turn too."""
        choice = choice_of(profile)
        if self._places and set(choice.keys) <= set(self.keys):
            return
        self._recorder.log.line(f"changing lines to {choice.label}: {choice.reason}")
        self._stand_in(choice)
        self._recorder.change(at_once=True, state="running", message=None)

    def over(self) -> None:
        """Give the places up: at once on the CPU, with the process on GPUs."""
        places, self._places = self._places, ()
        for place in places:
            if place.line.key == CPU:
                place.leave()
            else:
                _kept.append(place)

    def _stand_in(self, choice: DeviceChoice) -> tuple[DeviceChoice, bool]:
        """Wait in the lines until it is this run's turn in all of them or the run is cancelled.

        Returns:
            The choice, another one where another GPU was free before, and whether there was somebody to wait for.
        """
        self._leave()
        waited = False
        for key in choice.keys:
            self._places = (*self._places, Line(key).join(self._run.run_id, self._run.path))
            now, waited_here = self._wait_in_last(choice)
            waited = waited or waited_here
            if now is not choice or self._recorder.cancelled():
                return now, waited
        return choice, waited

    def _wait_in_last(self, choice: DeviceChoice) -> tuple[DeviceChoice, bool]:
        waited, said, looked = False, None, 0.0
        while ahead := self._places[-1].ahead():
            waited = True
            if time.monotonic() - looked >= _LOOK_S:
                if (other := self._taken_elsewhere(choice)) is not None:
                    self._moved(choice, other)
                    return other, waited
                looked = time.monotonic()
            others = f" ({len(ahead) - 1} more before this one)" if len(ahead) > 1 else ""
            sentence = sentences.WAITING.format(run_id=ahead[0].run_id, device=choice.label, others=others)
            if sentence != said:
                said = sentence
                self._recorder.log.line(sentence)
                self._echo(sentence)
                self._recorder.change(at_once=True, state="queued", message=sentence)
            if self._recorder.wait_cancelled(_POLL_S):
                break
        return choice, waited

    def _taken_elsewhere(self, choice: DeviceChoice) -> DeviceChoice | None:
        """Another GPU that passes and whose line was empty: this run stands first there now. The place here is kept until then."""
        if not any(is_free(key) for key in choice.others):
            return None
        other = self._decide()
        if other.keys == choice.keys or other.keys == (CPU,) or len(other.keys) > 1:
            return None
        place = Line(other.keys[0]).join(self._run.run_id, self._run.path)
        if place.ahead():
            place.leave()
            return None
        self._leave()
        self._places = (place,)
        return other

    def _decide_again(self, before: DeviceChoice) -> DeviceChoice:
        again = self._decide(stay=True)
        tries = 0 if before.keys == (CPU,) else int(_VRAM_RETURNS_S / 0.5)
        for _ in range(tries):
            if again.keys == before.keys or self._recorder.wait_cancelled(0.5):
                break
            again = self._decide(stay=True)
        return again

    def _decide(self, *, stay: bool = False) -> DeviceChoice:
        return choose_device(self._config, own=self.keys if stay else (), stay=stay)

    def _leave(self) -> None:
        for place in self._places:
            place.leave()
        self._places = ()

    def _touch(self) -> None:
        for place in self._places:
            place.touch()

    def _moved(self, before: DeviceChoice, after: DeviceChoice) -> None:
        sentence = sentences.MOVED.format(before=before.label, after=after.label, reason=after.reason)
        self._recorder.log.line(sentence)
        self._echo(sentence)
        self._recorder.change(at_once=True, message=sentence)


def _leave_kept() -> None:
    """A process that carries out several runs one after the other must not wait for itself."""
    while _kept:
        _kept.pop().leave()
