"""A run's turn on its device: decide, wait in that device's line, decide again, and change lines where the answer changed."""

from __future__ import annotations

from collections.abc import Callable

from app.cae.config import CaeConfig
from app.core.profile import HardwareProfile
from app.runs import sentences
from app.runs.devices import CPU, DeviceChoice, choice_of, choose_device, run_is_over, wait_for_ended_runs
from app.runs.folder import RunFolder
from app.runs.queue import Line, Place
from app.runs.recorder import Recorder

_POLL_S = 0.25
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
        self._place: Place | None = None

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
            waited = self._stand_in(choice)
            if self._recorder.cancelled():
                return False
            again = self._decide_again(choice) if waited else choice
            if again.key == choice.key:
                return True
            self._moved(choice, again)
            choice = again
        self._stand_in(choice)
        return not self._recorder.cancelled()

    def settle(self, profile: HardwareProfile) -> None:
        """Called when TensorFlow is up: where it uses another device than the one waited for, wait for that one's turn too."""
        choice = choice_of(profile)
        if self._place is not None and choice.key == self._place.line.key:
            return
        self._recorder.log.line(f"changing lines to {choice.label}: {choice.reason}")
        self._stand_in(choice)
        self._recorder.change(at_once=True, state="running", message=None)

    def over(self) -> None:
        """Give the place up: at once on the CPU, with the process on a GPU."""
        place, self._place = self._place, None
        if place is None:
            return
        if place.line.key == CPU:
            place.leave()
        else:
            _kept.append(place)

    def _stand_in(self, choice: DeviceChoice) -> bool:
        """Wait in one line until it is this run's turn or the run is cancelled; True when there was somebody to wait for."""
        if self._place is not None:
            self._place.leave()
        line = Line(choice.key)
        self._place = place = line.join(self._run.run_id, self._run.path)
        self._recorder.on_tick[:] = [place.touch]
        waited, said = False, None
        while ahead := place.ahead():
            others = f" ({len(ahead) - 1} more before this one)" if len(ahead) > 1 else ""
            sentence = sentences.WAITING.format(run_id=ahead[0].run_id, device=choice.label, others=others)
            if sentence != said:
                said = sentence
                self._recorder.log.line(sentence)
                self._echo(sentence)
                self._recorder.change(at_once=True, state="queued", message=sentence)
            waited = True
            if self._recorder.wait_cancelled(_POLL_S):
                break
        return waited

    def _decide_again(self, before: DeviceChoice) -> DeviceChoice:
        again = self._decide()
        tries = 0 if before.key == CPU else int(_VRAM_RETURNS_S / 0.5)
        for _ in range(tries):
            if again.key == before.key or self._recorder.wait_cancelled(0.5):
                break
            again = self._decide()
        return again

    def _decide(self) -> DeviceChoice:
        return choose_device(self._config)

    def _moved(self, before: DeviceChoice, after: DeviceChoice) -> None:
        sentence = sentences.MOVED.format(before=before.label, after=after.label, reason=after.reason)
        self._recorder.log.line(sentence)
        self._echo(sentence)
        self._recorder.change(at_once=True, message=sentence)


def _leave_kept() -> None:
    """A process that carries out several runs one after the other must not wait for itself."""
    while _kept:
        _kept.pop().leave()
