"""What a trial process does: `python -m app.core.tf_child '{"action": …}'`. Its lines on standard output begin with MARK.

`import`: import TensorFlow and nothing else (a CPU that lacks its instructions ends the process).
`gpu`: bring it up on the GPU that the environment leaves visible.
`threads`: set the threads in one of three ways and let oneDNN report what it uses.
`profile`: configure as a run would, and let oneDNN report the kernels.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from app.core import tf_readback
from app.core.errors import AppError
from app.core.facts import Gpu
from app.core.tf_gpu import start_gpu
from app.core.tf_trial import MARK
from app.core.tf_verify import configure_with_evidence


class OwnErrors:
    """What this process wrote to standard error: a file the parent opened, which stays readable when this process is ended."""

    @property
    def text(self) -> str:
        try:
            return os.pread(2, os.fstat(2).st_size, 0).decode("utf-8", "replace")
        except OSError:
            return ""


def say(step: str, **values: Any) -> None:
    """One line for the parent, at once."""
    sys.stdout.write(MARK + json.dumps({"step": step, **values}) + "\n")
    sys.stdout.flush()


def try_import(request: dict[str, Any]) -> None:
    """Says `imported` when TensorFlow can be imported here."""
    del request
    say("importing")
    say("imported", version=str(getattr(tf_readback.import_tensorflow(), "__version__", "")))


def try_gpu(request: dict[str, Any]) -> None:
    """Says `done` when a convolution ran on the GPU, else `failed` with kind and sentence."""
    say("importing")
    tf = tf_readback.import_tensorflow()
    say("imported", version=str(getattr(tf, "__version__", "")))
    gpu = Gpu(0, None, request["name"], logical_index=request["logical_index"]) if request.get("name") else None
    start = start_gpu(tf, gpu, initialised=False, limit_s=request["limit_s"], log=OwnErrors(), driver=request.get("driver"))
    if start.failure is not None:
        say("failed", kind=start.failure.kind, sentence=start.failure.sentence)
    else:
        say("done", device=start.first_op.device if start.first_op else None)


def try_threads(request: dict[str, Any]) -> None:
    """Sets `threads` (intra-op, inter-op) in the way asked for, runs a convolution, and says what the getters and the pools tell."""
    tf = tf_readback.import_tensorflow()
    intra, inter = request["threads"]
    if request["way"] == "config":
        tf.config.threading.set_intra_op_parallelism_threads(intra)
        tf.config.threading.set_inter_op_parallelism_threads(inter)
    if request["way"] == "session":
        tf_readback.session_convolution(tf, intra, inter)
    else:
        tf_readback.training_convolutions(tf, "/CPU:0")
    getters = tf.config.threading
    say(
        "threads",
        getter_intra=getters.get_intra_op_parallelism_threads(),
        getter_inter=getters.get_inter_op_parallelism_threads(),
        compute_threads=tf_readback.compute_threads(None if request["way"] == "omp" else inter),
    )


def try_profile(request: dict[str, Any]) -> None:
    """Configures as a run would, trains one convolution where the profile says, and says the profile with oneDNN's evidence."""
    try:
        profile = configure_with_evidence(**request["arguments"])
    except AppError as error:
        say("failed", kind="unknown", sentence=str(error))
        return
    say("profile", profile=profile.to_json(), report=profile.report())


ACTIONS = {"import": try_import, "gpu": try_gpu, "threads": try_threads, "profile": try_profile}


def main(arguments: list[str]) -> int:
    """Does what the request says."""
    request = json.loads(arguments[0])
    ACTIONS[request["action"]](request)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
