"""A real SLURM of one node on this machine: munged, slurmctld and slurmd of its own on free ports of loopback, everything in one temporary
folder, nothing left at the end. Any user may do so, for jobs of that user. Debian's packages slurm-wlm and munge bring the programs."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
from run_helpers import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "srun")
CPUS = 4
"""What the node says it has; more than this machine may have, so that jobs run beside each other."""

URGENT = "urgent"
"""A partition whose jobs take the place of the other's, which SLURM puts back into their queue."""


def why_not() -> str | None:
    """Why no SLURM can be started here; `None` when one can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_search_path()) is None]
    return f"no {missing[0]} here (Debian: apt-get install slurm-wlm munge)" if missing else None


class Cluster:
    """Call `start`, then export `SLURM_CONF`; `stop` ends what `start` started."""

    def __init__(self) -> None:
        # Not in pytest's folders: munge wants a socket that everybody may reach, and sockets want short paths.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)
        self.conf = self.folder / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for name in ("ctld", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.conf.write_text(self._configuration())
        # SLURM counts GPUs by their device files and opens none of them.
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null\n", encoding="ascii")
        files = {
            "socket": "munge.socket",
            "key-file": key.name,
            "pid-file": "munged.pid",
            "log-file": "munged.log",
            "seed-file": "munged.seed",
        }
        self._daemon("munged", "--foreground", "--force", *(f"--{name}={self.folder / file}" for name, file in files.items()))
        until((self.folder / "munge.socket").exists, "munge's socket")
        self._daemon("slurmctld", "-D", "-f", str(self.conf))
        self._daemon("slurmd", "-D", "-f", str(self.conf))
        until(lambda: "idle" in self.ask("sinfo", "--noheader", "--format=%T"), f"an idle node ({self.folder}/*.log)")

    def ask(self, *command: str) -> str:
        """Output of one of SLURM's commands, empty when it fails."""
        return subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False).stdout

    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf), "PATH": _search_path()}

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self.ask("scancel", "--full", "--signal=KILL", f"--user={os.getuid()}")
            self.ask("scancel", f"--user={os.getuid()}")
        for daemon in reversed(self._daemons):
            # slurmstepd lives on without slurmd.
            children = _children(daemon.pid)
            daemon.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            for process in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            daemon.kill()
            daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _daemon(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("wb") as output:
            self._daemons.append(
                subprocess.Popen(command, env=self.environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
            )

    def _configuration(self) -> str:
        host, place, user = socket.gethostname().split(".")[0], self.folder, pwd.getpwuid(os.getuid()).pw_name
        with _free_port() as controller, _free_port() as node:
            return f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={place}/ctld
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
CompleteWait=0
KillWait=5
ReturnToService=2
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs={CPUS} RealMemory=1000 Gres=gpu:1 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName={URGENT} Nodes={host} MaxTime=INFINITE State=UP PriorityTier=2
"""


@contextlib.contextmanager
def _free_port() -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield free.getsockname()[1]


def _children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def _search_path() -> str:
    # Debian puts the daemons where only root's login shell looks.
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
