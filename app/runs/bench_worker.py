"""The process of a benchmark: waits until no run is computing, measures, writes the folder, and says how it ended."""

from __future__ import annotations

import contextlib
import os
import platform
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

from app.core.cpu_probe import cpu_facts
from app.core.errors import AppError, DeviceError, OptionError, RunError
from app.core.facts import CpuFacts, GpuFacts
from app.core.gpu_probe import gpu_facts
from app.core.tf_build import TensorFlowBuild, tensorflow_build
from app.core.tf_device import REASONS, user_environment
from app.runs import bench_sentences as sentences
from app.runs.bench import run_bench
from app.runs.bench_child import PROGRAM
from app.runs.bench_folder import BenchFolder, read_bench
from app.runs.bench_options import BenchOptions
from app.runs.bench_points import BenchPlan, build_plan
from app.runs.bench_result import BenchResult
from app.runs.bench_writer import Echo, Writer, stopping_signals
from app.runs.devices import CPU
from app.runs.locks import try_lock
from app.runs.log import RunLog
from app.runs.queue import Line, Place, lines
from app.runs.sentences import UNEXPECTED, cannot_write
from app.runs.status import utc_now

_POLL_S = 0.25


def plan_here(options: BenchOptions) -> BenchPlan:
    """The points of this machine, with its description.

    Raises:
        DeviceError: TensorFlow is not installed.
        OptionError: `options.points` names neither a point nor a group.
    """
    build = tensorflow_build()
    if not build.installed:
        raise DeviceError(REASONS["not installed"])
    cpu, gpu = cpu_facts(), gpu_facts()
    return build_plan(cpu, gpu, user_environment(), options, build_has_gpu=build.has_gpu, machine=describe(cpu, gpu, build))


def describe(cpu: CpuFacts, gpu: GpuFacts, build: TensorFlowBuild) -> dict[str, Any]:
    """The machine as it is saved with the result."""
    return {
        "cpu": cpu.name,
        "microarchitecture": cpu.microarchitecture,
        "architecture": cpu.architecture,
        "features": dict(cpu.features),
        "physical_cores": cpu.physical_cores,
        "logical_cores": cpu.logical_cores,
        "usable_cores": cpu.usable_cores,
        "limited_by": cpu.limited_by,
        "gpus": [
            f"{found.name}, {found.total_mib} MiB" if found.total_mib else found.name for found in gpu.gpus if found.mig in (None, "parent")
        ],
        "driver_version": gpu.driver_version,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "tensorflow": build.version,
        "keras": _version("keras"),
        "tensorflow_package": build.distribution,
        "host": platform.node(),
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def carry_out(folder: BenchFolder, options: BenchOptions, *, echo: Echo = lambda _: None, program: Sequence[str] = PROGRAM) -> BenchResult:
    """Carry out a benchmark in `folder`, which is made when it is not there; call it in the main thread of a process of its own.

    Args:
        echo: gets progress lines.
        program: see `run_bench`.

    Returns:
        The result, state finished or cancelled; it stands in the folder too.

    Raises:
        AppError: it could not be done; the sentence stands in the folder too.
    """
    waiting = _is_set_up(folder)
    # What cannot work leaves no folder behind, unless somebody made it and looks there.
    plan = None if waiting else plan_here(options)
    if not waiting:
        folder.set_up(options)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, _claim(folder))
        log = RunLog(folder.path / "log.txt")
        stack.callback(log.close)
        writer = Writer(folder, log, echo)
        stack.enter_context(stopping_signals(writer))
        writer.write()
        try:
            return _measure(folder, plan or plan_here(options), writer, program)
        except AppError as error:
            writer.end("failed", error=str(error))
            raise
        except Exception as error:
            log.line(traceback.format_exc())
            sentence = UNEXPECTED.format(kind=type(error).__name__, text=str(error)[:300])
            writer.end("failed", error=sentence)
            raise RunError(sentence) from error


def _is_set_up(folder: BenchFolder) -> bool:
    """Whether the folder waits for its process; "cancelled" and "interrupted" without a process: it comes after all."""
    bench = read_bench(folder)
    return bench.status.mark is None and bench.state in ("queued", "cancelled", "interrupted") and bench.result is None


def _claim(folder: BenchFolder) -> int:
    """Make sure that no other process carries it out. Returns a descriptor to keep open: the claim."""
    place = folder.path / "options.json"
    try:
        descriptor = os.open(place, os.O_RDWR)
    except OSError as error:
        raise RunError(cannot_write(place, error)) from error
    if not try_lock(descriptor):
        os.close(descriptor)
        raise OptionError(sentences.BUSY.format(path=folder.path))
    return descriptor


def _measure(folder: BenchFolder, plan: BenchPlan, writer: Writer, program: Sequence[str]) -> BenchResult:
    empty = run_bench(plan, cancelled=lambda: True, bench_id=folder.bench_id)
    with _alone(plan, folder, writer) as our_turn:
        if not our_turn:
            writer.result(empty)
            writer.end("cancelled", message=sentences.CANCELLED_IN_QUEUE)
            return empty
        writer.change(state="running", started=utc_now(), message=None)
        plan = plan_here(plan.options)  # a run that held a GPU's memory may have ended meanwhile
        writer.result(replace(empty, state="running", ended=None))
        result = run_bench(
            plan,
            progress=writer.progress,
            cancelled=writer.cancelled,
            changed=writer.result,
            bench_id=folder.bench_id,
            program=program,
        )
    writer.result(result)
    if result.state == "finished" and not any(found.rounds for found in result.points):
        reasons = [f"{found.point.label}: {why}" for found in result.points if (why := found.problem or found.point.why_not)]
        raise RunError(sentences.NOTHING_MEASURED.format(why=" ".join(reasons)))
    writer.end(result.state, progress_done=writer.total if result.state == "finished" else writer.status.progress_done)
    return result


@contextlib.contextmanager
def _alone(plan: BenchPlan, folder: BenchFolder, writer: Writer) -> Iterator[bool]:
    """Hold the first place of every line of this machine: a run on a GPU computes its batches on the CPU, and would be measured too.

    Lines are taken one after the other in the order of their names, so that two benchmarks never wait for each other; a run holds one
    place only. False when the benchmark was cancelled meanwhile.
    """
    keys = {CPU, *(_line_key(point.device) for point in plan.measured), *(line.key for line in lines() if line.tickets())}
    places: list[Place] = []
    writer.places = places
    try:
        for key in sorted(keys):
            places.append(Line(key).join(f"benchmark {folder.bench_id}", folder.path))
            if not _wait_for_turn(places[-1], key, writer):
                yield False
                return
        yield True
    finally:
        writer.places = []
        for place in places:
            place.leave()


def _line_key(device: str) -> str:
    """As `app.runs.devices.choice_of` names lines."""
    return f"gpu-{device}" if device.isdecimal() else device


def _wait_for_turn(place: Place, key: str, writer: Writer) -> bool:
    while ahead := place.ahead():
        others = f" ({len(ahead) - 1} more before this one)" if len(ahead) > 1 else ""
        device = "CPU" if key == CPU else "the GPU"
        writer.change(message=sentences.WAITING.format(run_id=ahead[0].run_id, device=device, others=others))
        place.touch()
        time.sleep(_POLL_S)
        if writer.cancelled():
            return False
    return not writer.cancelled()
