"""The probe on recorded machines: facts through the doors, then the decision, against expected.json."""

from __future__ import annotations

import json
import math
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from recorded_machines import EXPECTED, MACHINES, NO_LIBRARY, case_of

from app.core.cpu_probe import cpu_facts
from app.core.device_policy import Decision, decide, decision_json
from app.core.facts import GpuFacts
from app.core.gpu_figures import SICK
from app.core.gpu_probe import NOT_TOLD, UNDER_WSL, gpu_facts, memory_available_mib
from app.core.gpu_trouble import SENTENCES
from app.core.reasons import REASONS
from app.core.smi_table import MESSAGE

CPU = cpu_facts(cpuinfo=MACHINES / "cpuinfo" / "B00.txt", environ={})
MEMINFO = "MemTotal:       127600748 kB\nMemFree:          1000000 kB\nMemAvailable:   118566368 kB\n"


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(MEMINFO)
    return path


def probe(environ: dict[str, str], meminfo: Path | None = None, **options: Any) -> GpuFacts:
    options = {"smi_places": (), "device_nodes": (), "system": "Linux", **options}
    return gpu_facts(environ=environ, meminfo=meminfo or Path("/proc/meminfo"), **options)


def check(expected: dict[str, Any], facts: GpuFacts, decision: Decision) -> None:
    """Every expectation that the machine's entry states."""
    first = facts.gpus[0] if facts.gpus else None
    said = {
        "selected_device": decision.selected_device,
        "gpu_index": decision.gpu.index if decision.gpu else None,
        "chosen_name": decision.gpu.name if decision.gpu else None,
        "vram": [decision.gpu.total_mib, decision.gpu.free_mib] if decision.gpu else None,
        "rows": len(facts.gpus),
        "warns": bool(facts.problems),
        "unified": any(gpu.unified_memory for gpu in facts.gpus),
        "vram_unknown": first is not None and first.total_mib is None and first.free_mib is None,
        "total": first.total_mib if first else None,
        "used": first.used_mib if first else None,
        "free": first.free_mib if first else None,
    }
    words = {"reason_mentions": decision.reason, "decision_warns": " ".join(decision.warnings)}
    assert {key: said[key] for key in expected if key in said} == {key: value for key, value in expected.items() if key in said}
    assert all(expected[key] in words[key] for key in expected if key in words), words
    assert set(expected) <= set(said) | set(words), "an expectation that nothing checks"


def check_sane(facts: GpuFacts) -> None:
    """What holds of every answer, whatever was put in."""
    for gpu in facts.gpus:
        figures = [gpu.total_mib, gpu.free_mib, gpu.used_mib, gpu.reserved_mib]
        assert all(value is None or (math.isfinite(value) and value >= 0) for value in figures)
        assert gpu.total_mib != 0
        assert gpu.total_mib is None or gpu.free_mib is None or gpu.free_mib <= gpu.total_mib
        assert gpu.name
        assert gpu.name.isprintable()
    json.dumps(decision_json(decide(facts, CPU), facts, CPU), allow_nan=False)


@pytest.mark.parametrize("machine", EXPECTED["smi"])
def test_machine_through_nvidia_smi(machine: str, smi_environ: Any, use_nvml: Any, meminfo: Path) -> None:
    use_nvml(NO_LIBRARY)
    facts = probe({**smi_environ(machine), "FAKE_SMI_DELAY": "0.3"}, meminfo)
    check(EXPECTED["smi"][machine], facts, decide(facts, CPU))
    check_sane(facts)
    assert facts.source == ("nvidia-smi" if facts.gpus else None)


@pytest.mark.parametrize("machine", EXPECTED["nvml"])
def test_machine_through_nvml(machine: str, bare_environ: dict[str, str], use_nvml: Any, meminfo: Path) -> None:
    use_nvml(machine)
    facts = probe(bare_environ, meminfo)
    check(EXPECTED["nvml"][machine], facts, decide(facts, CPU))
    check_sane(facts)
    assert facts.source == ("nvml" if facts.gpus else None)


@pytest.mark.parametrize("case", ["A00", "A15", "mig-refused"])
def test_both_doors_are_left_after_one_look(case: str, smi_environ: Any, use_nvml: Any) -> None:
    """NVML is shut down as often as it was started."""
    use_nvml(f"{case}-nvml" if case != "mig-refused" else "lost-first-nvml")
    probe(smi_environ(case))
    calls = sys.modules["pynvml"].calls
    assert calls == ["init", "shutdown"]


def test_nvidia_smi_is_not_run_when_nvml_answers(smi_environ: Any, use_nvml: Any, tmp_path: Path) -> None:
    use_nvml("A00-nvml")
    log = tmp_path / "asked"
    facts = probe({**smi_environ("A17"), "FAKE_SMI_LOG": str(log)})
    assert (facts.source, len(facts.gpus), log.exists()) == ("nvml", 1, False)


def test_nvml_failing_leaves_its_sentence_beside_the_gpus_of_nvidia_smi(smi_environ: Any, use_nvml: Any) -> None:
    use_nvml("A11-nvml")
    facts = probe(smi_environ("A00"))
    assert facts.source == "nvidia-smi"
    assert facts.problems == (SENTENCES["unknown"].format(source="NVML", detail="Unknown Error"),)


@pytest.mark.parametrize(
    ("machine", "sentence"),
    [
        ("inforom-exit14", MESSAGE.format(row="WARNING: infoROM is corrupted at gpu 0000:3B:00.0")),
        ("warning-before", MESSAGE.format(row="WARNING: infoROM is corrupted at gpu 0000:3B:00.0")),
        (
            "one-lost-exit15",
            SICK.format(
                gpu="GPU 1 'NVIDIA GPU 1 (name not readable)'",
                said="Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost. Reboot the system to recover this GPU",
                what="handle",
                which="0000:02:00.0",
            ),
        ),
    ],
)
def test_one_trouble_is_told_in_one_sentence(machine: str, sentence: str, smi_environ: Any, use_nvml: Any) -> None:
    use_nvml(NO_LIBRARY)
    assert probe(smi_environ(machine)).problems == (sentence,)


@pytest.mark.parametrize("status", [0, 8, 10, 14, 16])
@pytest.mark.parametrize("line", ["GPU 0000:3B:00.0: external power cable is not attached", "Warning: interrupts, many of them"])
def test_a_line_beside_the_rows_is_told_once_whatever_the_status(status: int, line: str, smi_environ: Any, use_nvml: Any) -> None:
    use_nvml(NO_LIBRARY)
    facts = probe(smi_environ({**case_of("smi", "A00"), "prefix": f"{line}\n", "exit": status}))
    assert facts.problems == (MESSAGE.format(row=line),)
    assert facts.gpus[0].free_mib == 15900


def test_nvml_tells_what_follows_from_an_unreadable_uuid(bare_environ: dict[str, str], use_nvml: Any) -> None:
    case = case_of("nvml", "A15-nvml")
    for gpu in case["gpus"]:
        gpu["uuid"] = "[Unknown Error]"
        for piece in gpu["mig"][:1]:
            piece["uuid"] = "[Unknown Error]"
    use_nvml(case)
    facts = probe(bare_environ)
    assert [gpu.uuid for gpu in facts.gpus[:2]] == [None, None]
    (problem,) = facts.problems
    assert "a run can name only GPU 0 to CUDA" in problem


def test_one_call_is_enough_for_nvidia_smi(smi_environ: Any, use_nvml: Any, tmp_path: Path) -> None:
    use_nvml(NO_LIBRARY)
    log = tmp_path / "asked"
    for machine in ("A00", "A17", "A05", "A19-units", "A34-garbage"):
        log.unlink(missing_ok=True)
        probe({**smi_environ(machine), "FAKE_SMI_LOG": str(log)})
        assert len(log.read_text().splitlines()) == 1, machine


def test_the_most_telling_trouble_is_the_cause(smi_environ: Any, use_nvml: Any) -> None:
    use_nvml("A08-nvml")
    facts = probe(smi_environ("A07"))
    mismatch = SENTENCES["mismatch"].format(source="nvidia-smi")
    assert facts.no_gpu_because == mismatch
    assert facts.problems == (mismatch, SENTENCES["driver"].format(source="NVML"))


def test_a_machine_without_nvidia_has_no_problem(bare_environ: dict[str, str], use_nvml: Any) -> None:
    use_nvml(NO_LIBRARY)
    facts = probe(bare_environ)
    assert (facts.gpus, facts.problems, facts.source) == ((), (), None)
    assert facts.no_gpu_because == SENTENCES["no tools"]


def test_a_device_file_without_tools_is_a_problem_and_can_be_forced(bare_environ: dict[str, str], use_nvml: Any, tmp_path: Path) -> None:
    use_nvml(NO_LIBRARY)
    node = tmp_path / "nvidiactl"
    node.touch()
    facts = probe(bare_environ, device_nodes=(node,))
    assert "'utility'" in facts.problems[0]
    assert decide(facts, CPU).selected_device == "cpu"
    forced = decide(facts, CPU, device="gpu")
    assert (forced.selected_device, forced.gpu) == ("gpu", None)


def test_pynvml_that_cannot_be_imported_is_calm(bare_environ: dict[str, str], use_nvml: Any) -> None:
    folder = use_nvml(NO_LIBRARY)
    (folder / "pynvml.py").write_text("raise ImportError('no such binding')\n")
    facts = probe(bare_environ)
    assert facts.problems == ()
    assert "NVML" in (facts.no_gpu_because or "")


def test_pynvml_that_calls_nvml_while_imported(bare_environ: dict[str, str], use_nvml: Any) -> None:
    folder = use_nvml("A07-nvml")
    (folder / "pynvml.py").write_text((folder / "pynvml.py").read_text() + "\nnvmlInit()\n")
    assert "mismatch" in (probe(bare_environ).no_gpu_because or "")


def test_an_empty_pynvml_is_calm(bare_environ: dict[str, str], use_nvml: Any) -> None:
    folder = use_nvml(NO_LIBRARY)
    (folder / "pynvml.py").write_text("")
    facts = probe(bare_environ)
    assert facts.gpus == ()
    assert "NVML" in (facts.no_gpu_because or "")


def test_a_shim_without_optional_functions_still_gives_memory(bare_environ: dict[str, str], use_nvml: Any) -> None:
    folder = use_nvml("A00-nvml")
    kept = ("nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetName")
    cut = f"\nfor _n in [n for n in globals() if n.startswith('nvml') and n not in {kept!r}]: del globals()[_n]\n"
    (folder / "pynvml.py").write_text((folder / "pynvml.py").read_text() + cut)
    gpu = probe(bare_environ).gpus[0]
    assert (gpu.name, gpu.free_mib, gpu.uuid, gpu.compute_capability) == ("NVIDIA RTX A4000", 15900, None, None)


def test_live_figures_and_who_holds_the_memory(bare_environ: dict[str, str], use_nvml: Any) -> None:
    folder = use_nvml("A00-nvml")
    extra = f"""
nvmlDeviceGetUtilizationRates = lambda h: _Record(gpu=37, memory=5)
nvmlDeviceGetTemperature = lambda h, sensor: 61
nvmlDeviceGetPowerUsage = lambda h: 20500
nvmlDeviceGetComputeRunningProcesses = lambda h: [
    _Record(pid={os.getpid()}, usedGpuMemory=300 * 2**20),
    _Record(pid=2**22 + 1, usedGpuMemory=None),
]
nvmlDeviceGetGraphicsRunningProcesses = lambda h: _raise("NotSupported")
"""
    (folder / "pynvml.py").write_text((folder / "pynvml.py").read_text() + extra)
    facts = probe(bare_environ)
    gpu = facts.gpus[0]
    assert (gpu.utilisation_percent, gpu.temperature_c, gpu.power_w) == (37, 61, 20.5)
    assert gpu.processes is not None
    assert [(p.pid == os.getpid(), bool(p.name), p.used_mib) for p in gpu.processes] == [(True, True, 300), (False, False, None)]
    assert facts.processes_note is None


def test_optional_figures_from_nvidia_smi(smi_environ: Any, use_nvml: Any) -> None:
    use_nvml(NO_LIBRARY)
    facts = probe(smi_environ("A00"))
    gpu = facts.gpus[0]
    assert (gpu.utilisation_percent, gpu.temperature_c, gpu.power_w, gpu.compute_capability) == (0, 40, 20.0, (8, 6))
    assert (gpu.uuid, gpu.pci_bus_id) == ("GPU-00000000-1111-2222-3333-444444444440", "00000000:01:00.0")
    assert facts.driver_version == "550.54.14"
    assert facts.processes_note == NOT_TOLD["nvidia-smi"]


def test_slices_stand_behind_their_parent_with_their_own_figures(bare_environ: dict[str, str], use_nvml: Any) -> None:
    use_nvml("A15-nvml")
    parent, small, large = probe(bare_environ).gpus
    assert (parent.mig, parent.problem, small.mig, large.mig) == ("parent", None, "1g.5gb", "2g.10gb")
    assert {small.index, large.index, parent.index} == {0}
    assert {small.mig_parent_uuid, large.mig_parent_uuid} == {parent.uuid}
    assert (small.free_mib, large.free_mib) == (4860, 9728)


def test_slices_listed_by_nvidia_smi_have_no_figures(smi_environ: Any, use_nvml: Any) -> None:
    use_nvml(NO_LIBRARY)
    facts = probe(smi_environ("A15"))
    assert [(gpu.mig, gpu.uuid, gpu.free_mib) for gpu in facts.gpus[1:]] == [
        ("1g.5gb", "MIG-aaaaaaaa-bbbb-5ccc-8ddd-eeeeeeeeeeee", None),
        ("2g.10gb", "MIG-bbbbbbbb-bbbb-5ccc-8ddd-eeeeeeeeeeee", None),
    ]
    assert decide(facts, CPU, device="MIG-bbbb").gpu == facts.gpus[2]


def test_unified_memory_is_judged_by_system_memory(bare_environ: dict[str, str], use_nvml: Any, meminfo: Path) -> None:
    use_nvml("A01-nvml")
    facts = probe(bare_environ, meminfo)
    available = 118566368 // 1024
    assert facts.system_memory_free_mib == available
    enough, short = decide(facts, CPU, available), decide(facts, CPU, available + 1)
    values = {"gpu": "'NVIDIA GB10'", "free": available}
    assert enough.reason == REASONS["gpu unified"].format(**values, threshold=available)
    assert short.reason.startswith(REASONS["too little unified"].format(**values, threshold=available + 1))
    assert (enough.selected_device, short.selected_device) == ("gpu", "cpu")


def test_available_memory_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    odd = tmp_path / "meminfo"
    odd.write_bytes(b"MemAvailable: lots kB\n\xff")
    assert memory_available_mib(odd) is None
    assert memory_available_mib(tmp_path / "none") is None


def _script(folder: Path, body: str) -> dict[str, str]:
    folder.mkdir()
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin"}


def test_a_hanging_nvidia_smi_is_ended_with_its_children(smi_environ: Any, use_nvml: Any, tmp_path: Path) -> None:
    use_nvml(NO_LIBRARY)
    mark = tmp_path / "pid"
    environ = _script(tmp_path / "hang", f"sleep 60 & echo $! > {mark}; wait")
    started = time.monotonic()
    facts = probe(environ, smi_limit_s=1.0)
    assert time.monotonic() - started < 8
    assert facts.no_gpu_because == SENTENCES["timeout"].format(source="nvidia-smi", seconds=1.0)
    assert "persistence" in facts.problems[0]
    grandchild = int(mark.read_text())
    deadline = time.monotonic() + 5
    while _alive(grandchild) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(grandchild)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_slow_nvidia_smi_still_succeeds(smi_environ: Any, use_nvml: Any) -> None:
    use_nvml(NO_LIBRARY)
    facts = probe({**smi_environ("A13-slow"), "FAKE_SMI_DELAY": "0.6"}, smi_limit_s=10)
    assert facts.gpus[0].free_mib == 15900


def test_a_grandchild_that_keeps_the_pipe_open_does_not_block(use_nvml: Any, tmp_path: Path) -> None:
    use_nvml(NO_LIBRARY)
    environ = _script(tmp_path / "pipe", "echo 'NVIDIA A30, 24576, 24000'; sleep 60 & exit 0")
    started = time.monotonic()
    facts = probe(environ, smi_limit_s=10)
    assert time.monotonic() - started < 8
    assert facts.gpus[0].free_mib == 24000


def test_a_child_that_closes_its_output_and_stays_is_ended(use_nvml: Any, tmp_path: Path) -> None:
    use_nvml(NO_LIBRARY)
    environ = _script(tmp_path / "deaf", "trap '' TERM HUP PIPE; exec >&- 2>&-; sleep 60")
    started = time.monotonic()
    assert "timed out" in (probe(environ, smi_limit_s=0.5).no_gpu_because or "")
    assert time.monotonic() - started < 8


def test_endless_output_is_neither_kept_nor_waited_for(use_nvml: Any, tmp_path: Path) -> None:
    use_nvml(NO_LIBRARY)
    facts = probe(_script(tmp_path / "endless", "exec yes 'a, b, c'"), smi_limit_s=0.5)
    assert "timed out" in (facts.no_gpu_because or "")


def test_noise_on_stderr_does_not_spoil_the_table(smi_environ: Any, use_nvml: Any) -> None:
    use_nvml(NO_LIBRARY)
    case = {**case_of("smi", "A00"), "stderr": "warning, 1, 2\n" * 5000}
    assert [gpu.free_mib for gpu in probe(smi_environ(case)).gpus] == [15900]


def test_a_hanging_nvml_is_asked_once_and_nvidia_smi_at_once(smi_environ: Any, use_nvml: Any) -> None:
    use_nvml({**case_of("nvml", "A13-nvml"), "init_hang_s": 3})
    environ = smi_environ("A00")
    first = probe(environ, nvml_limit_s=0.2)
    assert (first.source, first.problems) == ("nvidia-smi", (SENTENCES["timeout"].format(source="NVML", seconds=0.2),))
    started = time.monotonic()
    second = probe(environ, nvml_limit_s=30)
    assert time.monotonic() - started < 2.5
    assert "has not answered since" in second.problems[0]
    assert sum(thread.name == "nvml" for thread in threading.enumerate()) == 1
    deadline = time.monotonic() + 10
    while any(thread.name == "nvml" for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.02)
    sys.modules["pynvml"]._case["init_hang_s"] = 0
    third = probe(environ, nvml_limit_s=10)
    assert (third.source, third.problems) == ("nvml", ())


def test_wsl_place_is_looked_into_after_path(bare_environ: dict[str, str], make_smi: Any, use_nvml: Any, tmp_path: Path) -> None:
    use_nvml("A25")
    place = tmp_path / "usr" / "lib" / "wsl" / "lib"
    place.parent.mkdir(parents=True)
    make_smi("A00").rename(place)
    facts = probe(bare_environ, smi_places=(place / "nvidia-smi",))
    assert (facts.source, facts.gpus[0].free_mib) == ("nvidia-smi", 15900)
    assert (facts.gpus[0].processes, facts.processes_note) == (None, UNDER_WSL)


def test_path_comes_before_the_usual_places(smi_environ: Any, make_smi: Any, use_nvml: Any) -> None:
    use_nvml(NO_LIBRARY)
    facts = probe(smi_environ("A17"), smi_places=(make_smi("A00") / "nvidia-smi",))
    assert len(facts.gpus) == 2


def test_not_executable_is_named_and_the_next_on_path_is_used(make_smi: Any, bare_environ: dict[str, str], use_nvml: Any) -> None:
    use_nvml(NO_LIBRARY)
    broken, good = make_smi("A00"), make_smi("A00")
    tool = broken / "nvidia-smi"
    tool.chmod(stat.S_IRUSR)
    alone = probe({"PATH": f"{broken}{os.pathsep}{bare_environ['PATH']}"})
    assert alone.no_gpu_because == SENTENCES["not executable"].format(source="nvidia-smi", path=tool)
    assert probe({"PATH": f"{broken}{os.pathsep}{good}{os.pathsep}{bare_environ['PATH']}"}).gpus[0].free_mib == 15900


@pytest.mark.parametrize("content", [b"\x7fELF\x02\x01\x01broken", b"", b"no interpreter line", b"#!/nowhere/python\n"])
def test_a_file_that_cannot_be_started(content: bytes, use_nvml: Any, tmp_path: Path) -> None:
    use_nvml(NO_LIBRARY)
    environ = _script(tmp_path / "bad", "")
    tool = tmp_path / "bad" / "nvidia-smi"
    tool.write_bytes(content)
    facts = probe(environ)
    assert "nvidia-smi" in (facts.no_gpu_because or "")
    assert facts.problems


def test_the_look_is_timed_and_bounded(bare_environ: dict[str, str], use_nvml: Any) -> None:
    use_nvml("A00-nvml")
    assert 0 < probe(bare_environ).probe_ms < 10_000


DOORS = """
import json, sys
from app.core.cpu_probe import cpu_facts
from app.core.device_policy import decide, decision_json
from app.core.gpu_probe import gpu_facts
gpu, cpu = gpu_facts(), cpu_facts()
json.dump(decision_json(decide(gpu, cpu), gpu, cpu), sys.stdout)
assert "tensorflow" not in sys.modules and "keras" not in sys.modules
"""


@pytest.mark.parametrize("free", [887, 3200])
@pytest.mark.parametrize("door", ["-nvml", ""])
def test_a_process_with_the_fakes_first_on_its_paths(door: str, free: int, root: Path, python: str, make_smi: Any, make_nvml: Any) -> None:
    machine, through_nvml = f"situation-{free}{door}", bool(door)
    folder = make_nvml(machine if through_nvml else NO_LIBRARY)
    path = os.environ["PATH"] if through_nvml else f"{make_smi(machine)}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{root}", "PATH": path}
    done = subprocess.run([python, "-c", DOORS], env=environ, capture_output=True, text=True, timeout=60, check=True)
    said = json.loads(done.stdout)
    assert (said["gpu_source"], said["gpus"][0]["free_mib"]) == ("nvml" if through_nvml else "nvidia-smi", free)
    assert said["selected_device"] == ("gpu" if free >= 2048 else "cpu")
    assert str(free) in said["reason"]
    assert done.stderr == ""
