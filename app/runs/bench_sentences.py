"""What the benchmark says to people, in one place. Tests format the same templates."""

from __future__ import annotations

NOT_HERE = {
    "no avx": "The CPU offers no AVX, which TensorFlow needs.",
    "no isa": "{cpu} has no {name}.",
    "not x86": "{cpu} is no x86 processor ({architecture}): there is no {name} on it.",
}
"""Why a path does not exist on this machine."""

REPLACES = "{name}={value} of your environment is replaced by {new} in this point's own process, since that is what it measures."
SETS_THREADS = "{name}={value} of your environment is kept, but this point asks for {new}, which wins through tf.config.threading."
HOLDS = "{name}={value} of your environment holds for every point that is not about it, as it does for runs."
VERBOSE = "{name} of your environment is switched off in the timed processes: printing takes time."

WAITING = "Waiting for run {run_id} on {device}{others}: a measurement beside another run would measure both."
KINDS = {"evidence": "looking which kernels run", "timed": "round {round} of {rounds}"}

TOO_LONG = "Its process did not end within {limit:g} s."
DIED = "Its process was ended by {signal}{hint}."
ENDED = "Its process ended with exit status {status} before it had measured anything{said}."
NO_ANSWER = "Its process ended without an answer{said}."
CANNOT_START = "Its process cannot be started ({why})."
SIGNAL_HINTS = {"SIGILL": ": an instruction this CPU lacks", "SIGKILL": ": kill -9 or the out-of-memory killer"}

BUSY_MACHINE = (
    "Other processes kept {percent:.0f} % of the CPU busy (median, looked at before each timed process): expect lower figures and wider "
    "ranges than on a quiet machine."
)
OTHER_ISA = "{asked} was asked for, {seen} was seen."
STILL_ONEDNN = "oneDNN was to be off, but convolutions ran in it."
OTHER_THREADS = "{asked} asked for, {seen} seen."

NOTHING_MEASURED = "bench: no point could be measured: {why}"
CANCELLED_IN_QUEUE = "Cancelled while it waited for other runs; nothing was measured."
FOLDER_TAKEN = "--out: expected a folder that is new or empty, got {path}, which holds something. Choose another."
BUSY = "--out: another process carries out the benchmark in {path}."
NO_BENCH = "{path}: expected the folder of a benchmark, got one without progress.json."
UNREADABLE = "{path}: {why}."
NOT_STARTED = "bench {bench_id}: its process cannot be started ({why}): {program}."
CANCEL_OVER = "Benchmark {bench_id} is not running (state: {state}): there is nothing to cancel."
CANCEL_ASKED = "Asked benchmark {bench_id} to stop; what it has measured stays. A second cancel kills it."
CANCEL_KILLED = "Killed benchmark {bench_id}; what it had measured stays."
CANCEL_ELSEWHERE = "Asked benchmark {bench_id} to stop through its folder; it runs on {host}."
