"""The profile of one process: what was decided, what was applied, and what TensorFlow really uses. Its report and its JSON."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Literal

from app.core.device_policy import Decision
from app.core.facts import CpuFacts, Gpu, GpuFacts
from app.core.instruction_set import ISA_CAPS, ISA_VARIABLES, cap_in, widest
from app.core.kernel_evidence import KernelEvidence, short_instruction_set
from app.core.tf_settings import Setting, onednn_wanted
from app.core.words import counted

_WIDTH = 64
_LABEL_WIDTH = 16
_RULE = "=" * 60
UNKNOWN = "–"
_WITHOUT_ONEDNN = "measured: the process has as many threads more as it says, with oneDNN off too; oneDNN's own count is no evidence then"


@dataclass(frozen=True)
class HardwareProfile:
    """Where TensorFlow computes in this process, why, and how that is known.

    `selected_device` and `reason` say what is used; `decision` says what was decided before TensorFlow was asked. Where the two
    differ, `happened` says what came between them. Unknown values are `None`.
    """

    selected_device: Literal["cpu", "gpu"]
    reason: str
    decision: Decision | None = None
    happened: str | None = None
    """Why TensorFlow does not use what was decided, as one sentence; `None` when it does."""
    gpu: Gpu | None = None
    """The GPU in use; `None` on the CPU path."""
    more_gpus: tuple[Gpu, ...] = ()
    """Further GPUs in use, in a run over several."""
    gpu_facts: GpuFacts | None = None
    cpu: CpuFacts | None = None
    cuda_available: bool | None = None
    """This TensorFlow has CUDA, and a GPU is there that it can use (whether or not it is used)."""
    settings: tuple[Setting, ...] = ()
    """What took effect."""
    not_applied: tuple[Setting, ...] = ()
    """What did not: the user's values that name nothing usable, and the app's own where TensorFlow had already started."""
    intra_op_threads: int | None = None
    """Threads in force inside one operation; `None` where TensorFlow was started by somebody else."""
    inter_op_threads: int | None = None
    onednn: bool | None = None
    """Whether TensorFlow's oneDNN operations are on, as it says itself."""
    evidence: KernelEvidence | None = None
    """The kernels that ran; only where oneDNN was told to report them."""
    logical_devices: tuple[str, ...] = ()
    tf_device_string: str = "/CPU:0"
    """What to enter with `tf.device(…)`: on this device the work is done."""
    strategy_devices: tuple[str, ...] = ()
    """In a run over several GPUs: the devices of its `MirroredStrategy`; else empty."""
    first_op_device: str | None = None
    first_op_ms: float | None = None
    memory_growth: bool | None = None
    tensorflow_version: str | None = None
    keras_version: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def instruction_set(self) -> str | None:
        """Measured where there is evidence, else what this CPU and ONEDNN_MAX_CPU_ISA let expect; `None` off x86."""
        if self.evidence is not None and self.evidence.instruction_set is not None:
            return self.evidence.instruction_set
        return expected_instruction_set(self.cpu, self.settings)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels that computed convolutions; empty where nothing was verified."""
        if self.evidence is None:
            return ()
        return tuple(dict.fromkeys(kernel.implementation for kernel in self.evidence.convolutions))

    @property
    def path(self) -> str:
        """Short label: `GPU · NVIDIA RTX A4000`, `CPU · AVX2 through oneDNN`, `CPU · oneDNN off`."""
        if self.selected_device == "gpu" and self.more_gpus and self.gpu:
            names = [gpu.name for gpu in (self.gpu, *self.more_gpus)]
            return "GPU · " + " + ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
        if self.selected_device == "gpu":
            return f"GPU · {self.gpu.name if self.gpu else 'unknown GPU'}"
        if self.onednn is False:
            return "CPU · oneDNN off"
        if self.instruction_set:
            return f"CPU · {self.instruction_set} through oneDNN"
        return "CPU · oneDNN" if self.onednn else "CPU"

    def with_evidence(self, evidence: KernelEvidence) -> HardwareProfile:
        """The profile with what oneDNN reported, and the settings judged by it."""
        settings = tuple(_judged(setting, evidence, self.intra_op_threads, self.cpu) for setting in self.settings)
        return replace(self, evidence=evidence, settings=settings)

    def report(self) -> str:
        """The block that `device --verify` prints; every run's log begins with it."""
        rows = [
            ("CUDA available", _yes_no(self.cuda_available)),
            ("GPU", self._gpu_row()),
            ("VRAM free/total", self._vram_row()),
            ("CPU cores", self._cores_row()),
            ("AVX2 (256-bit)", _yes_no(self.cpu.avx2 if self.cpu else None)),
            ("Selected device", self.selected_device.upper()),
            ("Reason", self.reason),
        ]
        if self.happened and self.decision is not None:
            rows.append(("Decided before", self.decision.reason))
        lines = [_RULE, "TensorFlow Device Configuration", _RULE, *(line for label, text in rows for line in _row(label, text))]
        lines += _bullets("Applied settings", (_bullet(setting) for setting in self.settings))
        lines += _bullets("Not applied", (_bullet(setting) for setting in self.not_applied))
        lines += _bullets("Read back", self._readback())
        lines += _bullets("Warnings", self.warnings)
        return "\n".join([*lines, _RULE])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, with the derived labels `path`, `instruction_set` and `kernels`."""
        values = _plain(self)
        assert isinstance(values, dict)
        return {**values, "path": self.path, "instruction_set": self.instruction_set, "kernels": list(self.kernels)}

    def _shown_gpu(self) -> Gpu | None:
        """The GPU in use or decided on, else the one that came nearest: most free memory."""
        found = self.gpu or (self.decision.gpu if self.decision else None)
        if found is not None or self.gpu_facts is None:
            return found
        return max((gpu for gpu in self.gpu_facts.gpus if gpu.mig != "parent"), key=lambda gpu: gpu.free_mib or -1, default=None)

    def _gpu_row(self) -> str:
        gpu = self._shown_gpu()
        if gpu is None:
            return "none"
        others = sum(other.mig != "parent" for other in self.gpu_facts.gpus) - 1 if self.gpu_facts else 0
        return gpu.name + (f" (index {gpu.index}, {others} more)" if others > 0 else "")

    def _vram_row(self) -> str:
        gpu = self._shown_gpu()
        if gpu is not None and gpu.unified_memory:
            return "unknown / shared with system RAM"
        free, total = (gpu.free_mib, gpu.total_mib) if gpu else (None, None)
        if free is None and total is None:
            return UNKNOWN
        return f"{_number(free)} / {_number(total)} MiB"

    def _cores_row(self) -> str:
        if self.cpu is None:
            return UNKNOWN
        return self.cpu.limited_by or str(self.cpu.usable_cores)

    def _readback(self) -> Iterable[str]:
        if self.logical_devices:
            yield f"logical devices: {', '.join(self.logical_devices)}"
        if self.first_op_device:
            took = f" ({self.first_op_ms:.0f} ms)" if self.first_op_ms is not None else ""
            yield f"first convolution ran on {self.first_op_device}{took}"
        if self.intra_op_threads is not None:
            yield f"threads: {self.intra_op_threads} intra-op, {_number(self.inter_op_threads)} inter-op"
        if self.evidence is not None:
            yield self.evidence.sentence


def expected_instruction_set(cpu: CpuFacts | None, settings: Iterable[Setting] = ()) -> str | None:
    """The widest instruction set oneDNN will use on this CPU under the settings; `None` where it cannot be told."""
    if cpu is None:
        return None
    return widest(cpu, cap_in({setting.name: setting.value for setting in settings})[1])


def _judged(setting: Setting, evidence: KernelEvidence, intra_op: int | None, cpu: CpuFacts | None) -> Setting:
    """A setting whose effect oneDNN's own lines show."""
    if setting.name == "TF_NUM_INTRAOP_THREADS":
        return _judged_threads(setting, evidence, intra_op, cpu)
    if setting.name == "OMP_NUM_THREADS" and evidence.runtime is not None:
        said = f"read back: oneDNN's thread runtime is {evidence.runtime}"
        return replace(setting, honoured="omp" in evidence.runtime.lower() or "openmp" in evidence.runtime.lower(), how_known=said)
    if setting.name == "TF_ENABLE_ONEDNN_OPTS" and evidence.onednn_convolutions is not None:
        wanted = onednn_wanted(setting.value)
        names = ", ".join(dict.fromkeys(kernel.implementation for kernel in evidence.convolutions)) or "only matrix multiplications"
        return replace(
            setting,
            honoured=None if wanted is None else wanted == evidence.onednn_convolutions,
            how_known=f"read back: kernels {names}",
        )
    if setting.name in ISA_VARIABLES and evidence.isa:
        cap = ISA_CAPS.get(setting.value.upper())
        return replace(
            setting,
            honoured=None if cap is None else short_instruction_set(evidence.isa) == cap,
            how_known=f"read back: oneDNN reports {evidence.isa}",
        )
    return setting


def _judged_threads(setting: Setting, evidence: KernelEvidence, intra_op: int | None, cpu: CpuFacts | None) -> Setting:
    """oneDNN tells its thread count once, at its first call; one outside TensorFlow's pool tells the machine's count (measured)."""
    if evidence.threads is None:
        return setting
    if evidence.onednn_convolutions is False:
        return replace(setting, how_known=_WITHOUT_ONEDNN)
    said = f"oneDNN reports {counted(evidence.threads, 'thread')}"
    machines_own = cpu is not None and evidence.threads in (cpu.logical_cores, cpu.usable_cores)
    if evidence.threads != intra_op and machines_own:
        return replace(setting, honoured=None, how_known=f"{said}, as many as the machine has: no evidence either way")
    return replace(setting, honoured=evidence.threads == intra_op, how_known=f"read back: {said}")


def _yes_no(value: bool | None) -> str:
    return "unknown" if value is None else str(value)


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _row(label: str, text: str) -> list[str]:
    head = f"  {label:<{_LABEL_WIDTH}}: "
    # A comparison stays on one line with its number.
    whole = text.replace("(< ", "(<\u00a0").replace("(≥ ", "(≥\u00a0")
    filled = textwrap.fill(
        whole, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False
    )
    return filled.replace("\u00a0", " ").splitlines()


def _bullet(setting: Setting) -> str:
    by_user = " (set by the user)" if setting.set_by == "user" else ""
    unread = " (not read by TensorFlow)" if setting.honoured is False and setting.name == "OMP_NUM_THREADS" else ""
    return f"{setting.name}={setting.value}{by_user}{unread}"


def _bullets(title: str, items: Iterable[str]) -> list[str]:
    found = list(items)
    if not found:
        return []
    wrapped = (
        textwrap.wrap(item, 96, initial_indent="    • ", subsequent_indent="      ", break_long_words=False, break_on_hyphens=False)
        for item in found
    )
    return [f"  {title}:", *(line for lines in wrapped for line in lines)]


def _plain(value: object) -> Any:
    """Dataclasses, tuples, paths and numbers as JSON knows them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value
