"""Machines one may try the decision on: facts written down instead of probed, decided by the same code. Everything here is simulated."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.device_policy import Decision, decide
from app.core.facts import CpuFacts, Gpu, GpuFacts, GpuProcess
from app.core.gpu_figures import sick
from app.core.tf_failures import translate_tf_failure

_DRIVER = "550.54.14"
_AVX2 = ("sse4_2", "avx", "avx2", "fma")
_AVX512 = (*_AVX2, "avx512f", "avx512_vnni")
_ALL = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")


@dataclass(frozen=True)
class Machine:
    """A simulated machine."""

    key: str
    label: str
    story: str
    gpu: GpuFacts
    cpu: CpuFacts
    build_has_gpu: bool = True
    tensorflow_says: str | None = None
    """What TensorFlow prints when it is brought up there: the GPU was decided on, but does not work."""

    def decide(self, min_vram_mib: int, device: str = "auto") -> Decision:
        """The decision, by the same function that decides on this machine."""
        return decide(self.gpu, self.cpu, min_vram_mib, device=device, build_has_gpu=self.build_has_gpu)

    def what_happens(self, decision: Decision) -> str | None:
        """What reading back would find where TensorFlow cannot follow the decision; `None` when it can."""
        if decision.selected_device != "gpu" or self.tensorflow_says is None:
            return None
        return translate_tf_failure(self.tensorflow_says, driver=self.gpu.driver_version)[1]


def simulated_machines() -> tuple[Machine, ...]:
    """The situations this project was made for, and some that are seldom at hand."""
    return (*_known_situations(), *_seldom_at_hand())


def _server() -> CpuFacts:
    return _cpu("Intel Xeon Gold 6338", 32, 64, 64, _AVX512)


def _known_situations() -> tuple[Machine, ...]:
    server = _server()
    return (
        Machine(
            "ci",
            "CI runner, no GPU",
            "Two cores in a container.",
            _none(),
            _cpu("AMD EPYC 7763", 1, 64, 2, _AVX2, "2 of 64, container limit"),
        ),
        Machine(
            "laptop",
            "Laptop, Intel GPU only",
            "TensorFlow computes on NVIDIA GPUs; an Intel GPU does not count.",
            _none(),
            _cpu("Intel Core i7-1185G7", 4, 8, 8, _AVX512),
        ),
        Machine(
            "ws-busy",
            "Workstation, 400 MiB free",
            "Somebody's PatchCore fills the GPU.",
            _one("NVIDIA GeForce RTX 3060", 12288, 400, holder=11400),
            _cpu("AMD Ryzen 9 5900X", 12, 24, 24, _AVX2),
        ),
        Machine(
            "ws-some",
            "Workstation, 3200 MiB free",
            "The same GPU with some room left.",
            _one("NVIDIA GeForce RTX 3060", 12288, 3200, holder=8600),
            _cpu("AMD Ryzen 9 5900X", 12, 24, 24, _AVX2),
        ),
        Machine("shared-2400", "Shared server, 2400 MiB free", "Just above the usual threshold.", _one("NVIDIA A10", 23028, 2400), server),
        Machine("server-1500", "Server, 1500 MiB free", "Just below the usual threshold.", _one("NVIDIA A10", 23028, 1500), server),
        Machine(
            "t2000",
            "Quadro T2000, 887 of 4096 MiB free",
            "The example that this dashboard began with.",
            _one("Quadro T2000", 4096, 887, capability=(7, 5)),
            _cpu("Intel Core i7-9850H", 6, 12, 12, _AVX2),
        ),
    )


def _seldom_at_hand() -> tuple[Machine, ...]:
    server = _server()
    return (
        Machine(
            "four",
            "Shared server, four GPUs",
            "One full, one lost, one hidden from this process; the freest of the rest wins.",
            _four(),
            server,
        ),
        Machine("mig", "MIG slice of an A100", "The GPU is divided; a slice with memory of its own is what one gets.", _mig(), server),
        Machine(
            "unified",
            "Unified-memory board (GB10)",
            "The GPU shares system RAM and reports no figures of its own.",
            _unified(),
            CpuFacts("NVIDIA Grace (Cortex-X925)", "aarch64", dict.fromkeys(_ALL, False), None, 20, 20, 20),
        ),
        Machine(
            "libraries",
            "GPU build missing its libraries",
            "A big free GPU, but CUDA's libraries are not installed.",
            _one("NVIDIA RTX A4000", 16376, 15900),
            _cpu("Intel Xeon W-2245", 8, 16, 16, _AVX512),
            tensorflow_says="Cannot dlopen some GPU libraries. Skipping registering GPU devices...",
        ),
        Machine(
            "cpu-build",
            "GPU there, CPU build installed",
            "tensorflow-cpu never uses a GPU, however free it is.",
            _one("NVIDIA RTX A4000", 16376, 15900),
            _cpu("Intel Xeon W-2245", 8, 16, 16, _AVX512),
            build_has_gpu=False,
        ),
    )


def described_machine(free_mib: int, total_mib: int, gpus: int, usable_cores: int, avx2: bool, build_has_gpu: bool) -> Machine:
    """A machine from a visitor's own sliders: `gpus` equal GPUs, the first with `free_mib` free and each further one with half as much."""
    boards = tuple(_gpu(index, "Described GPU", total_mib, min(total_mib, free_mib) // 2**index) for index in range(gpus))
    features = _AVX2 if avx2 else ("sse4_2", "avx")
    return Machine(
        "own",
        "A machine of your own",
        "As the sliders say.",
        GpuFacts(
            gpus=boards, source="nvml" if boards else None, driver_version=_DRIVER, no_gpu_because=None if boards else "none described."
        ),
        _cpu("Described CPU", usable_cores, usable_cores, usable_cores, features),
        build_has_gpu=build_has_gpu,
    )


def _cpu(name: str, physical: int, logical: int, usable: int, features: tuple[str, ...], limited_by: str | None = None) -> CpuFacts:
    return CpuFacts(name, "x86_64", {key: key in features for key in _ALL}, None, physical, logical, usable, limited_by)


def _none() -> GpuFacts:
    return GpuFacts(no_gpu_because="no nvidia-smi and no NVML: VRAM cannot be checked.")


def _gpu(index: int, name: str, total: int, free: int, capability: tuple[int, int] = (8, 6), processes: tuple[GpuProcess, ...] = ()) -> Gpu:
    uuid = f"GPU-0000000{index}-0000-4000-8000-00000000000{index}"
    return Gpu(index, uuid, name, total, free, total - free, compute_capability=capability, processes=processes, logical_index=index)


def _one(name: str, total: int, free: int, *, capability: tuple[int, int] = (8, 6), holder: int | None = None) -> GpuFacts:
    processes = (GpuProcess(4711, "python", holder),) if holder else ()
    return GpuFacts(gpus=(_gpu(0, name, total, free, capability, processes),), source="nvml", driver_version=_DRIVER)


def _four() -> GpuFacts:
    full, lost, hidden, free = (_gpu(index, "NVIDIA A30", 24576, mib, (8, 0)) for index, mib in enumerate((100, 0, 24000, 20000)))
    left_out = sick(lost, "GPU is lost", "handle")
    return GpuFacts(
        gpus=(
            full,
            Gpu(1, lost.uuid, lost.name, problem=left_out, logical_index=1),
            Gpu(2, hidden.uuid, hidden.name, 24576, 24000, 576, compute_capability=(8, 0), visible=False),
            free,
        ),
        source="nvml",
        driver_version=_DRIVER,
        visibility_note="CUDA_VISIBLE_DEVICES=0,1,3 hides GPU 2 from this process.",
        problems=(left_out,),
    )


def _mig() -> GpuFacts:
    parent = "GPU-00000000-0000-4000-8000-000000000000"
    return GpuFacts(
        gpus=(
            Gpu(0, parent, "NVIDIA A100-SXM4-40GB", 40960, 30000, 10960, mig="parent", compute_capability=(8, 0)),
            Gpu(
                0,
                "MIG-00000000-0000-5000-8000-000000000001",
                "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
                4864,
                4780,
                84,
                mig="1g.5gb",
                mig_parent_uuid=parent,
                compute_capability=(8, 0),
                logical_index=0,
            ),
        ),
        source="nvml",
        driver_version=_DRIVER,
    )


def _unified() -> GpuFacts:
    board = Gpu(
        0, "GPU-00000000-0000-4000-8000-00000000000a", "NVIDIA GB10", unified_memory=True, compute_capability=(12, 1), logical_index=0
    )
    return GpuFacts(gpus=(board,), source="nvml", driver_version="580.95.05", system_memory_free_mib=115787)
