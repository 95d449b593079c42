"""CPU facts of recorded machines: features, cores, what limits them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_machines import MACHINES

from app.core.cgroup import count_cpus
from app.core.cpu_probe import ODD_SLURM, cpu_facts, slurm_cpus, windows_features
from app.core.cpu_text import FEATURES, HETEROGENEOUS, SOME_ONLY, parse_cpuinfo, parse_sysctl
from app.core.facts import CpuFacts

TWELVE = {"affinity": range(12), "logical": 12}


def recorded(name: str, **options: Any) -> CpuFacts:
    return cpu_facts(
        cpuinfo=MACHINES / "cpuinfo" / f"{name}.txt", cgroup_root=MACHINES / "cgroup" / "nothing", **{"environ": {}, **options}
    )


def in_group(name: str, **options: Any) -> CpuFacts:
    return cpu_facts(cgroup_root=MACHINES / "cgroup" / name, **{"environ": {}, **TWELVE, **options})


def test_the_users_variables_about_onednn_are_among_the_facts() -> None:
    environ = {"ONEDNN_MAX_CPU_ISA": "AVX", "TF_ENABLE_ONEDNN_OPTS": "0", "PATH": "/nowhere"}
    assert recorded("zen4", environ=environ).variables == {"TF_ENABLE_ONEDNN_OPTS": "0", "ONEDNN_MAX_CPU_ISA": "AVX"}
    assert recorded("zen4").variables == {}


@pytest.mark.parametrize(
    ("machine", "avx", "avx2"),
    [
        ("B00", True, True),
        ("B04-model", True, False),
        ("B04-512only", True, False),
        ("B04-suffix", True, False),
        ("B04-percpu", True, False),
        ("B04-upper", True, True),
        ("B05", False, False),
        ("B01-empty", None, None),
        ("B10-ppc", False, False),
        ("sandy-bridge", True, False),
        ("zen4", True, True),
        ("crlf", True, True),
        ("truncated", None, None),
        ("flags-in-text", True, False),
        ("graviton3", False, False),
        ("big-little", False, False),
        ("raspberry-old", False, False),
        ("riscv", False, False),
        ("garbage", None, None),
        ("s390", None, None),
    ],
)
def test_flags_are_whole_words_on_every_processors_own_line(machine: str, avx: bool | None, avx2: bool | None) -> None:
    facts = recorded(machine, machine="x86_64")
    assert (facts.avx, facts.avx2) == (avx, avx2)
    assert tuple(facts.features) == FEATURES


@pytest.mark.parametrize(
    ("machine", "present"),
    [
        ("sapphire-rapids", set(FEATURES)),
        ("cascade-lake", {"sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_vnni"}),
        ("zen4", {"sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16"}),
        ("alder-lake", {"sse4_2", "avx", "avx2", "fma"}),
        ("sandy-bridge", {"sse4_2", "avx"}),
        ("B05", set()),
        ("graviton3", set()),
    ],
)
def test_features(machine: str, present: set[str]) -> None:
    assert recorded(machine).features == {feature: feature in present for feature in FEATURES}


def test_only_some_processors_have_it_is_said() -> None:
    assert SOME_ONLY.format(feature="avx2", some=2, all=4) in recorded("B04-percpu").problems
    assert recorded("B00").problems == ()


@pytest.mark.parametrize("make", ["missing", "folder", "empty", "unreadable"])
def test_without_cpuinfo_the_features_are_unknown(make: str, tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    if make == "folder":
        path.mkdir()
    elif make == "empty":
        path.touch()
    elif make == "unreadable":
        path.symlink_to(path)
    facts = cpu_facts(cpuinfo=path, environ={}, machine="x86_64")
    assert (facts.avx, facts.avx2) == (None, None)
    assert len(facts.problems) == 1
    assert str(path) in facts.problems[0]
    assert facts.usable_cores >= 1


def test_another_architecture_has_no_avx_even_without_cpuinfo(tmp_path: Path) -> None:
    assert cpu_facts(cpuinfo=tmp_path / "none", environ={}, machine="arm64").avx2 is False


@pytest.mark.parametrize(
    ("machine", "architecture"),
    [
        ("B00", "x86_64"),
        ("graviton3", "aarch64"),
        ("raspberry-old", "armv7l"),
        ("B10-ppc", "ppc64le"),
        ("riscv", "riscv64"),
        ("loongson", "loongarch64"),
        ("B01-empty", "sparc64"),
    ],
)
def test_the_architecture_is_the_recorded_machines(machine: str, architecture: str) -> None:
    assert recorded(machine, machine="loongarch64" if machine == "loongson" else "sparc64").architecture == architecture


@pytest.mark.parametrize(
    ("machine", "microarchitecture"),
    [
        ("sapphire-rapids", "Sapphire Rapids"),
        ("cascade-lake", "Cascade Lake"),
        ("alder-lake", "Alder Lake"),
        ("zen4", "Zen 4"),
        ("crlf", "Zen 2"),
        ("sandy-bridge", "Sandy Bridge"),
        ("graviton3", "Neoverse V1"),
        ("orin", "Cortex-A78AE"),
        ("big-little", "Cortex-A55 + Cortex-A76"),
        ("unknown-family", None),
        ("B00", None),
        ("B10-ppc", None),
    ],
)
def test_microarchitecture(machine: str, microarchitecture: str | None) -> None:
    assert recorded(machine).microarchitecture == microarchitecture


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ("B00", "Generic x86 CPU @ 2.40GHz"),
        ("B10-ppc", "POWER9"),
        ("graviton3", "ARM Neoverse V1"),
        ("gb10", "ARM Cortex-A725 + Cortex-X925"),
        ("raspberry-old", "ARMv7 Processor rev 4 (v7l)"),
        ("B01-empty", None),
    ],
)
def test_name(machine: str, name: str | None) -> None:
    assert recorded(machine).name == name


@pytest.mark.parametrize(
    ("machine", "mixed"), [("alder-lake", True), ("big-little", True), ("gb10", True), ("zen4", False), ("graviton3", False)]
)
def test_cores_of_different_kinds_are_said(machine: str, mixed: bool) -> None:
    assert any("different kinds" in note for note in recorded(machine).notes) == mixed


@pytest.mark.parametrize(
    ("vendor", "family", "model", "name", "kinds"),
    [
        ("GenuineIntel", 6, 204, "Panther Lake", "performance and efficiency cores"),
        ("GenuineIntel", 6, 213, "Wildcat Lake", "performance and efficiency cores"),
        ("GenuineIntel", 6, 215, "Bartlett Lake", None),
        ("GenuineIntel", 6, 207, "Emerald Rapids", None),
        ("AuthenticAMD", 25, 120, "Zen 4", "Zen 4 and Zen 4c cores"),
        ("AuthenticAMD", 25, 124, "Zen 4", "Zen 4 and Zen 4c cores"),
        ("AuthenticAMD", 25, 116, "Zen 4", None),
        ("AuthenticAMD", 26, 36, "Zen 5", "Zen 5 and Zen 5c cores"),
        ("AuthenticAMD", 26, 96, "Zen 5", "Zen 5 and Zen 5c cores"),
        ("AuthenticAMD", 26, 68, "Zen 5", None),
        ("AuthenticAMD", 26, 112, "Zen 5", None),
    ],
)
@pytest.mark.parametrize("virtual", [False, True])
def test_hybrid_processors_by_their_numbers(vendor: str, family: int, model: int, name: str, kinds: str | None, virtual: bool) -> None:
    flags = "fpu avx2 hypervisor" if virtual else "fpu avx2"
    lines = [f"processor : {n}\nvendor_id : {vendor}\ncpu family : {family}\nmodel : {model}\nflags : {flags}\n" for n in range(4)]
    found = parse_cpuinfo("\n".join(lines))
    assert found.microarchitecture == name
    assert found.notes == (() if kinds is None or virtual else (HETEROGENEOUS.format(kinds=kinds),))


@pytest.mark.parametrize(
    ("machine", "hypervisor"), [("B05", True), ("B00", True), ("zen4", False), ("graviton3", None), ("B01-empty", None)]
)
def test_hypervisor(machine: str, hypervisor: bool | None) -> None:
    assert recorded(machine).hypervisor is hypervisor


@pytest.mark.parametrize(
    ("machine", "logical", "physical"),
    [("B10-2socket", 4, 4), ("B10-ht", 8, 4), ("B10-ppc", 8, None), ("sapphire-rapids", 4, 2), ("B00", 4, 4), ("B05", 2, None)],
)
def test_logical_and_physical_cores(machine: str, logical: int, physical: int | None) -> None:
    facts = recorded(machine)
    assert (facts.logical_cores, facts.physical_cores) == (logical, physical)
    assert any("logical ones are shown" in note for note in facts.notes) == (physical is None)


@pytest.mark.parametrize(("counted", "problem"), [(None, False), (65536, True), (0, False)])
def test_a_physical_count_that_cannot_be_is_left_out(
    counted: int | None, problem: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 8 if logical else counted)
    facts = cpu_facts(cpuinfo=tmp_path / "none", environ={}, logical=8, affinity=range(8))
    assert facts.physical_cores is None
    assert facts.usable_cores <= 8
    assert any("65536" in sentence for sentence in facts.problems) == problem


@pytest.mark.parametrize(
    ("group", "usable"),
    [
        ("B07", 4),
        ("B07-half", 1),
        ("B07-frac", 3),
        ("B07-max", 12),
        ("B07-nested", 2),
        ("B07-bad", 12),
        ("B07-zero", 12),
        ("B07-v1", 2),
        ("B07-v1unlimited", 12),
        ("v2-tighter-parent", 2),
        ("v2-hosts-path", 3),
        ("v2-dots", 3),
        ("v2-tiny", 1),
        ("v2-no-period", 12),
        ("v1-nested", 5),
        ("v1-zero-period", 12),
        ("hybrid", 2),
        ("nothing", 12),
    ],
)
def test_quota(group: str, usable: int) -> None:
    facts = in_group(group)
    assert facts.usable_cores == usable
    assert facts.limited_by == (None if usable == 12 else f"{usable} of 12, container limit")
    assert facts.logical_cores == 12


@pytest.mark.parametrize(("group", "usable"), [("B08-cpuset", 3), ("v2-both", 4), ("v2-cpuset-odd", 12), ("v2-cpuset-empty", 12)])
def test_cpuset(group: str, usable: int) -> None:
    facts = in_group(group)
    assert (facts.usable_cores, facts.limited_by) == (usable, None if usable == 12 else f"{usable} of 12, cpuset")


def test_the_own_groups_file_can_be_given(tmp_path: Path) -> None:
    own = tmp_path / "self"
    own.write_text("0::/\n")
    assert in_group("B07-nested", self_cgroup=own).usable_cores == 12


def test_a_machine_of_twelve_patched_into_the_system_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)
    facts = cpu_facts(cgroup_root=MACHINES / "cgroup" / "B07", environ={})
    assert (facts.usable_cores, facts.limited_by) == (4, "4 of 12, container limit")


def test_affinity_limits() -> None:
    facts = recorded("B10-ht", affinity={0}, logical=8)
    assert (facts.usable_cores, facts.limited_by) == (1, "1 of 8, CPU affinity")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_a_process_on_one_cpu_uses_one() -> None:
    one = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    code = f"{one}; from app.core.cpu_probe import cpu_facts; print(cpu_facts().usable_cores)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "1"


@pytest.mark.parametrize(
    ("counts", "usable", "limited_by"),
    [((80, 64), 64, "64 of 80, process sees one processor group"), ((80, 80), 80, None), ((80, None), 80, None)],
)
def test_windows_with_more_than_64_cpus(
    counts: tuple[int, int | None], usable: int, limited_by: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: counts[0])
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: counts[1])
    facts = cpu_facts(cpuinfo=tmp_path / "none", cgroup_root=tmp_path, environ={}, system="Windows", machine="AMD64")
    assert (facts.usable_cores, facts.limited_by, facts.logical_cores) == (usable, limited_by, 80)


def test_what_windows_says_about_the_processor() -> None:
    said: Callable[[int], int] = {38: 1, 39: 1, 40: 1, 41: 0}.__getitem__
    features = windows_features(said)
    assert {key: features[key] for key in ("sse4_2", "avx", "avx2", "avx512f", "fma")} == {
        "sse4_2": True,
        "avx": True,
        "avx2": True,
        "avx512f": False,
        "fma": None,
    }
    if sys.platform != "win32":
        assert set(windows_features().values()) == {None}


@pytest.mark.parametrize(
    ("name", "architecture", "avx2", "cores", "mixed"),
    [
        ("intel-mac", "x86_64", True, (6, 12), False),
        ("old-mac", "x86_64", False, (2, 4), False),
        ("apple-silicon", "arm64", False, (8, 8), True),
    ],
)
def test_macos(name: str, architecture: str, avx2: bool, cores: tuple[int, int], mixed: bool, tmp_path: Path) -> None:
    text = (MACHINES / "sysctl" / f"{name}.txt").read_text()
    facts = cpu_facts(cpuinfo=tmp_path / "none", environ={}, sysctl=text, machine=architecture, system="Darwin")
    assert (facts.architecture, facts.avx2, (facts.physical_cores, facts.logical_cores)) == (architecture, avx2, cores)
    assert (facts.name or "").startswith(("Intel", "Apple"))
    assert bool(facts.notes) == mixed
    assert facts.problems == ()


@pytest.mark.parametrize(
    ("environ", "usable"),
    [
        ({"SLURM_CPUS_PER_TASK": "4"}, 4),
        ({"SLURM_CPUS_ON_NODE": "6"}, 6),
        ({"SLURM_CPUS_PER_TASK": "2", "SLURM_CPUS_ON_NODE": "6"}, 2),
        ({"SLURM_JOB_CPUS_PER_NODE": "4(x2),3"}, 4),
        ({"SLURM_JOB_CPUS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2"}, 3),
        ({"SLURM_JOB_CPUS_PER_NODE": "4(x2),3", "SLURM_NODEID": "9"}, 3),
        ({"SLURM_CPUS_PER_TASK": "64"}, 12),
        ({"SLURM_CPUS_PER_TASK": ""}, 12),
    ],
)
def test_slurm(environ: dict[str, str], usable: int) -> None:
    facts = in_group("nothing", environ=environ)
    assert (facts.usable_cores, facts.limited_by) == (usable, None if usable == 12 else f"{usable} of 12, SLURM allocation")
    assert facts.problems == ()


@pytest.mark.parametrize("value", ["lots", "-4", "0", "1.5", "4(x)", "4;3"])
def test_an_odd_slurm_value_is_said_and_ignored(value: str) -> None:
    assert slurm_cpus({"SLURM_CPUS_PER_TASK": value, "SLURM_CPUS_ON_NODE": "3"}) == (
        3,
        (ODD_SLURM.format(name="SLURM_CPUS_PER_TASK", value=value),),
    )


def test_the_tightest_limit_is_named() -> None:
    facts = in_group("B07", environ={"SLURM_CPUS_PER_TASK": "3"}, affinity=range(8))
    assert facts.limited_by == "3 of 12, SLURM allocation"
    assert in_group("B07", affinity=range(2)).limited_by == "2 of 12, CPU affinity"


@pytest.mark.parametrize(
    ("text", "count"),
    [("0-11", 12), ("0,2-3", 3), ("0-3,2-5", 6), ("7", 1), ("", None), ("3-1", None), ("a", None), ("0-", None), ("0-999999", None)],
)
def test_cpu_lists(text: str, count: int | None) -> None:
    assert count_cpus(text) == count


def test_this_machine() -> None:
    facts = cpu_facts()
    assert 1 <= facts.usable_cores <= (os.cpu_count() or 1)
    assert facts.architecture


FIELDS = """processor : 0\nprocessor\t: 1\nflags : avx avx2\nflags\t\t: avx\nflags :\nmodel name : x\nphysical id : 0\ncore id : 7
cpu family : 6\nmodel : 85\nstepping : 9\nvendor_id : GenuineIntel\nFeatures : asimd\nCPU implementer : 0x41\nCPU part : ?\n\n:
processor : -1\nprocessor : 99999999999999999999999\nphysical id : nan\ncore id : -7\nphysical id : 99999999999999999999999\ncpu cores : 0
cpu family : 99999999999999999999999\nmodel : -85\nflags : avx2 avx2 AVX2 noavx2"""
CPUINFO_LINES = st.sampled_from(FIELDS.splitlines()) | st.text(max_size=30)


@given(st.lists(CPUINFO_LINES, max_size=40).map("\n".join) | st.text(max_size=300))
def test_no_cpuinfo_breaks_it(text: str) -> None:
    found = parse_cpuinfo(text)
    assert tuple(found.features) == FEATURES
    assert found.processors is None or found.processors >= 1
    assert found.physical_cores is None or 1 <= found.physical_cores <= (found.processors or 0)
    if found.features["avx2"]:
        assert text.lower().count("avx2") >= (found.processors or 0)


@given(
    st.lists(
        st.sampled_from(["hw.physicalcpu: 4", "machdep.cpu.features: AVX1.0", "hw.optional.arm64: 1", "hw.logicalcpu: -3"])
        | st.text(max_size=30)
    )
)
def test_no_sysctl_breaks_it(lines: list[str]) -> None:
    assert tuple(parse_sysctl("\n".join(lines)).features) == FEATURES


@given(
    st.dictionaries(
        st.sampled_from(["SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE", "SLURM_NODEID"]),
        st.text(max_size=12) | st.sampled_from(["4(x2),3", "99999", "1"]),
    )
)
def test_no_slurm_variable_breaks_it(environ: dict[str, str]) -> None:
    assert 1 <= in_group("nothing", environ=environ).usable_cores <= 12
