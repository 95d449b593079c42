"""Every sentence that a decision can speak, as templates. Tests format the same ones."""

from __future__ import annotations

REASONS = {
    "gpu": "GPU {gpu} has {free} MiB free (≥ threshold {threshold} MiB).",
    "gpu unified": "GPU {gpu} shares system RAM, of which {free} MiB are available (≥ threshold {threshold} MiB); the figure is system "
    "memory.",
    "too little": "GPU {gpu} has only {free} MiB free (< threshold {threshold} MiB).",
    "too little unified": "GPU {gpu} shares system RAM, of which only {free} MiB are available (< threshold {threshold} MiB); the figure "
    "is system memory.",
    "memory unknown": "The free memory of GPU {gpu} is unknown, and unknown never counts as enough; {forced} tries it anyway.",
    "no gpu": "No NVIDIA GPU found.",
    "no gpu because": "No usable NVIDIA GPU: {because}",
    "hidden": "{note}",
    "hidden plainly": "Every GPU is hidden from this process.",
    "divided": "GPU {gpu} is divided by MIG: TensorFlow computes on its slices, each listed for itself.",
    "no slice": "GPU {gpu} is divided by MIG and has no slice to compute on; create one (nvidia-smi mig -cgi … -C).",
    "driver too old": "The NVIDIA driver {driver} is too old for this TensorFlow (needs ≥ {needed}); update the driver.",
    "gpu too old": "GPU {gpu} has compute capability {capability}, this TensorFlow is built for {needed} and later.",
    "build": "GPU {gpu} stays unused: this TensorFlow build has no GPU support (install the extra gpu instead of cpu).",
    "windows": "Native Windows: TensorFlow uses no NVIDIA GPU there since 2.11; use WSL2.",
    "macos": "macOS: TensorFlow has no NVIDIA GPU support there.",
    "forced cpu": "The CPU is forced.",
    "forced gpu": "GPU {gpu} is forced.",
    "forced gpu blind": "The GPU is forced, although nothing tells about it: {because}",
    "forced in vain": "A GPU is forced ({device}), but it cannot be used.",
    "no such gpu": "No GPU matches '{device}'; there are: {known}.",
    "ambiguous": "'{device}' is the beginning of more than one UUID: {known}.",
    "gpu failed": "{gpu} was {chosen}, but {happened}. {path}",
    "forced hidden": "GPU {gpu} is hidden by CUDA_VISIBLE_DEVICES.",
}
PATH_AVX2 = "Using AVX2 CPU path."
PATH_CPU = "Using the CPU path."
AVX512_THROUGH_ONEDNN = "oneDNN uses AVX-512 here."
CAPPED = "{name}={value} (set by the user) keeps oneDNN at {isa}."
ONEDNN_OFF = "oneDNN is off (TF_ENABLE_ONEDNN_OPTS={value}, set by the user)."
WARN_NO_AVX = (
    "This CPU has no AVX: TensorFlow's packages end with an illegal instruction here, so no run can start; in a virtual machine set its "
    "CPU type to 'host'."
)
WARN_FORCED = "GPU {gpu} is forced against this: {why}"
WARN_PTX = (
    "GPU {gpu} has compute capability {capability}, newer than this TensorFlow was built for ({newest}): kernels are compiled at first "
    "use, which takes minutes."
)
