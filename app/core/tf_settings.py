"""The environment variables that steer TensorFlow: what each is set to on each path, what it changes, what is known about it (pure).

Measured with tensorflow-cpu 2.21.0 (oneDNN 3.7.3), read from oneDNN's own verbose lines and from the names of the
process's threads; `device --verify` measures them again on the machine it runs on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

SetBy = Literal["user", "app"]


@dataclass(frozen=True)
class Setting:
    """One variable, who set it, and whether this TensorFlow goes by it."""

    name: str
    value: str
    set_by: SetBy
    honoured: bool | None = None
    """Whether this TensorFlow goes by it here; `None`: not known."""
    how_known: str = ""
    changes: str = ""
    """What the variable changes, as one sentence."""
    note: str | None = None
    """What is odd about the value, or what is in force in its place, as one sentence."""


@dataclass(frozen=True)
class ThreadCount:
    """A number of threads as somebody wrote it into a variable."""

    count: int | None
    """`None`: the text does not name a usable number."""
    problem: str | None = None


@dataclass(frozen=True)
class ThreadPlan:
    """Threads asked for, and those that have to be set through `tf.config.threading` because the environment cannot say them."""

    intra_op: int
    inter_op: int
    intra_through_config: bool = False
    inter_through_config: bool = False


_CHANGES = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID numbers the GPUs as nvidia-smi does; CUDA's own default is fastest first.",
    "CUDA_VISIBLE_DEVICES": "The GPUs a process may see; -1 hides all.",
    "TF_ENABLE_ONEDNN_OPTS": (
        "1 lets oneDNN compute convolutions with the widest instructions the CPU has; 0 leaves them to Eigen. "
        "Not set, TensorFlow switches it on only for CPUs with AVX-512 VNNI and newer: a CPU with plain AVX2 would run without."
    ),
    "TF_NUM_INTRAOP_THREADS": "Threads inside one operation; oneDNN uses the same threads.",
    "TF_NUM_INTEROP_THREADS": (
        "Operations run at once. 1, found in many texts, measured 10-20 % slower than the usable cores for this network on two cores."
    ),
    "OMP_NUM_THREADS": "Threads of OpenMP libraries in this process; TensorFlow's own pool is not one of them.",
    "TF_CPP_MIN_LOG_LEVEL": "2 leaves only errors of TensorFlow's C++ part on the console.",
    "ONEDNN_MAX_CPU_ISA": "The widest instruction set oneDNN may use: SSE41, AVX, AVX2, AVX512_CORE …",
    "DNNL_MAX_CPU_ISA": "Older name of ONEDNN_MAX_CPU_ISA, still read.",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true lets GPU memory grow on demand; false takes it all at start.",
    "TF_GPU_ALLOCATOR": "cuda_malloc_async hands GPU memory back to a pool that other parts of the process can use.",
    "TF_XLA_FLAGS": "Options of the XLA compiler.",
}

_HOW_KNOWN = {
    "CUDA_DEVICE_ORDER": "CUDA's documentation",
    "CUDA_VISIBLE_DEVICES": "read back: the devices TensorFlow lists",
    "TF_ENABLE_ONEDNN_OPTS": "measured: kernel brg_conv_fwd:avx2 with 1, only matrix multiplications with 0",
    "TF_NUM_INTRAOP_THREADS": "measured: oneDNN's thread count follows it (7 gave nthr:7)",
    "TF_NUM_INTEROP_THREADS": "measured: the process has as many tf_Compute threads as it says",
    "OMP_NUM_THREADS": "measured: 7 left oneDNN at nthr:2, its runtime is TensorFlow's threadpool",
    "TF_CPP_MIN_LOG_LEVEL": "TensorFlow's documentation; a few lines written before logging starts appear all the same",
    "ONEDNN_MAX_CPU_ISA": "measured: SSE41 gave kernel jit:sse41, AVX gave jit:avx",
    "DNNL_MAX_CPU_ISA": "measured: SSE41 gave kernel jit:sse41",
}

_THREADING_WINS = "measured: what tf.config.threading sets wins over the variable"
_WHY_INERT = {
    "TF_NUM_INTRAOP_THREADS": _THREADING_WINS,
    "TF_NUM_INTEROP_THREADS": _THREADING_WINS,
    "ONEDNN_MAX_CPU_ISA": "measured: oneDNN passes unknown names over",
    "DNNL_MAX_CPU_ISA": "measured: oneDNN passes unknown names over",
}
"""How it is known that a user's value names nothing that is in force."""

_REPORTED_WHEN_SET = (
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_ALLOCATOR",
    "TF_XLA_FLAGS",
)
"""Never set by the app; shown when the user has set them, since they change what is measured."""

_GROWTH_OFF = "It wins over the memory growth that the app sets: TensorFlow takes nearly the whole VRAM at its start."

ONEDNN_ISA_NAMES = frozenset(
    {"ALL", "DEFAULT", "SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX10_1_512", "AVX10_1_512_AMX", "AVX10_1_512_AMX_FP16"}
    | {f"AVX512_CORE{suffix}" for suffix in ("", "_VNNI", "_BF16", "_FP16", "_AMX", "_AMX_FP16")}
)
"""Values of ONEDNN_MAX_CPU_ISA (oneDNN developer guide, "CPU Dispatcher Control"); any other is silently passed over (measured)."""


MOST_DIGITS = 7


def read_thread_count(text: str) -> ThreadCount:
    """What a thread variable's text means: `"4"` is 4, `"4,3,2"` is 4 and odd, `"all"`, `""`, `"0"` and `"-3"` name no number."""
    if not text.strip():
        return ThreadCount(None, "is set but empty")
    first, comma, _ = text.partition(",")
    digits = first.strip()
    # Longer ones name no machine's threads, and Python refuses to read numbers of thousands of digits.
    if not digits.removeprefix("-").removeprefix("+").isdecimal() or not digits.isascii() or len(digits) > MOST_DIGITS:
        return ThreadCount(None, f"is {text[:40]!r}, which is not a whole number of threads")
    count = int(digits)
    if count < 1:
        return ThreadCount(None, f"is {text!r}, which is below 1")
    return ThreadCount(count, f"is the list {text!r}, of which the first number counts" if comma else None)


def plan_threads(usable_cores: int, intra_op: int | None, inter_op: int | None, environ: Mapping[str, str]) -> ThreadPlan:
    """The threads to bring up: an option wins over the environment, the environment over the usable cores.

    `tf.config.threading` is used where the environment says something else than wanted and may not be overwritten: it wins
    over the variables (measured). A negative TF_NUM_INTRAOP_THREADS would make TensorFlow abort the process (measured:
    `Check failed: num_threads >= 1`), so the usable cores are set over it.
    """
    intra, intra_config = _one_pool(usable_cores, intra_op, environ.get("TF_NUM_INTRAOP_THREADS"))
    inter, inter_config = _one_pool(usable_cores, inter_op, environ.get("TF_NUM_INTEROP_THREADS"))
    return ThreadPlan(intra, inter, intra_config, inter_config)


def _one_pool(usable_cores: int, asked: int | None, text: str | None) -> tuple[int, bool]:
    if text is None:
        return (asked or usable_cores), False
    # TensorFlow reads these with a plain integer parser: a list is no number to it (measured: "4,3" left the default).
    found = read_thread_count(text).count if "," not in text else None
    wanted = asked or found or usable_cores
    return wanted, wanted != found


def planned_settings(
    *, path: Literal["cpu", "gpu"], threads: ThreadPlan, gpu: str | None, environ: Mapping[str, str]
) -> tuple[Setting, ...]:
    """Every variable this path wants or the user has set; what the user has set is kept.

    `gpu`: what CUDA_VISIBLE_DEVICES shall hold on the GPU path (a UUID, or an index where the driver tells no UUID);
    `None` leaves it alone, for a GPU that nobody can tell about.
    """
    wanted = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if path == "gpu" else {}
    shown = gpu if path == "gpu" else "-1"
    if shown is not None:
        wanted["CUDA_VISIBLE_DEVICES"] = shown
    wanted |= {
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "TF_NUM_INTRAOP_THREADS": str(threads.intra_op),
        "TF_NUM_INTEROP_THREADS": str(threads.inter_op),
        "OMP_NUM_THREADS": str(threads.intra_op),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    kept = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", *_REPORTED_WHEN_SET)
    names = [*wanted, *(name for name in kept if name in environ and name not in wanted)]
    settings = tuple(_setting(name, wanted.get(name, ""), environ, threads) for name in names)
    return tuple(replace(setting, note=_GROWTH_OFF) if path == "gpu" and forbids_growth(setting) else setting for setting in settings)


def forbids_growth(setting: Setting) -> bool:
    """The user's TF_FORCE_GPU_ALLOW_GROWTH=false, which wins over what the app sets."""
    return setting.name == "TF_FORCE_GPU_ALLOW_GROWTH" and setting.value.lower() == "false"


def _setting(name: str, wanted: str, environ: Mapping[str, str], threads: ThreadPlan) -> Setting:
    by_user = name in environ
    value = environ[name] if by_user else wanted
    setting = Setting(
        name=name,
        value=value,
        set_by="user" if by_user else "app",
        honoured=False if name == "OMP_NUM_THREADS" else True if name in _HOW_KNOWN else None,
        how_known=_HOW_KNOWN.get(name, "not tried"),
        changes=_CHANGES.get(name, ""),
        note=_user_note(name, value, threads) if by_user else None,
    )
    if is_inert(setting) and name in _WHY_INERT:
        return replace(setting, honoured=False, how_known=_WHY_INERT[name])
    return setting


def _user_note(name: str, value: str, threads: ThreadPlan) -> str | None:
    if name == "TF_NUM_INTRAOP_THREADS":
        return _pool_note(value, threads.intra_op, threads.intra_through_config)
    if name == "TF_NUM_INTEROP_THREADS":
        return _pool_note(value, threads.inter_op, threads.inter_through_config)
    if name == "OMP_NUM_THREADS":
        found = read_thread_count(value)
        if found.problem is None:
            return None
        return f"It {found.problem}" + ("; OpenMP libraries pass it over" if found.count is None else "") + ". It is kept as it is."
    if name == "TF_ENABLE_ONEDNN_OPTS" and onednn_wanted(value) is None:
        return "TensorFlow knows only 0, 1, true and false, and takes its default for this CPU: on with AVX-512 VNNI and newer, else off."
    if name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA") and value.upper() not in ONEDNN_ISA_NAMES:
        return f"oneDNN does not know {value!r} and passes it over."
    return None


def _pool_note(value: str, threads: int, through_config: bool) -> str | None:
    if not through_config:
        return None
    found = read_thread_count(value)
    if found.problem is None:
        return f"It is kept, but the option asks for {threads}: tf.config.threading sets {threads}, which wins."
    return f"It {found.problem}. It is kept as it is; tf.config.threading sets {threads}, which wins."


def onednn_wanted(value: str | None) -> bool | None:
    """What TF_ENABLE_ONEDNN_OPTS asks for: on, off, or (not set, or a value TensorFlow does not know) its default for this CPU."""
    return {"1": True, "true": True, "0": False, "false": False}.get((value or "").lower())


def setting_warnings(settings: tuple[Setting, ...]) -> tuple[str, ...]:
    """One sentence for each variable whose value is odd."""
    return tuple(f"{setting.name}={setting.value} (set by the user): {setting.note}" for setting in settings if setting.note)


def is_inert(setting: Setting) -> bool:
    """The user's value names nothing that can be in force, so it must not be shown as applied."""
    if setting.set_by == "app" or setting.note is None:
        return False
    if setting.name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        return True
    if setting.name == "OMP_NUM_THREADS":
        return read_thread_count(setting.value).count is None
    return setting.name in ("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def with_readback(
    settings: tuple[Setting, ...],
    *,
    onednn_on: bool | None,
    compute_threads: int | None,
    inter_op: int | None,
    built_with_gpu: bool | None,
    hidden_by_call: str | None,
) -> tuple[Setting, ...]:
    """The settings with what TensorFlow itself said after start-up.

    Args:
        onednn_on: TensorFlow's own flag.
        compute_threads: threads of the process called tf_Compute, the inter-op pool.
        inter_op: the inter-op threads asked for.
        built_with_gpu: whether this TensorFlow has GPU support.
        hidden_by_call: what `tf.config.set_visible_devices` did where the user's variable leaves more visible, as a sentence.
    """
    updated = []
    for setting in settings:
        if setting.name.startswith("CUDA_") and built_with_gpu is False:
            said = "this TensorFlow build has no GPU support, so nothing reads it"
            setting = replace(setting, honoured=None, how_known=said)
        elif setting.name == "CUDA_VISIBLE_DEVICES" and hidden_by_call:
            setting = replace(setting, how_known=hidden_by_call)
        if setting.name == "TF_ENABLE_ONEDNN_OPTS" and onednn_on is not None:
            wanted = onednn_wanted(setting.value)
            said = f"read back: TensorFlow says its oneDNN operations are {'on' if onednn_on else 'off'}"
            setting = replace(setting, honoured=None if wanted is None else wanted == onednn_on, how_known=said)
        if setting.name == "TF_NUM_INTEROP_THREADS" and compute_threads and not is_inert(setting):
            said = f"read back: the process has {compute_threads} tf_Compute threads"
            setting = replace(setting, honoured=compute_threads == inter_op, how_known=said)
        updated.append(setting)
    return tuple(updated)
