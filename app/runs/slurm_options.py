"""What a run asks of SLURM: every setting once, for the command line, the form and the environment. Checked at the border.

Whatever somebody types becomes the value of one sbatch option, never a word of a shell: values with quotes, backslashes or control
characters are refused, since sbatch reads its options from lines of a script.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from app.core.errors import OptionError

VARIABLES = {
    "partition": "TWOPATH_SLURM_PARTITION",
    "gpus": "TWOPATH_SLURM_GPUS",
    "cpus": "TWOPATH_SLURM_CPUS",
    "memory": "TWOPATH_SLURM_MEMORY",
    "time": "TWOPATH_SLURM_TIME",
    "account": "TWOPATH_SLURM_ACCOUNT",
    "extra": "TWOPATH_SLURM_EXTRA",
}
"""Where a setting that is not given comes from."""

_TIME = r"^(\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d\d?(:\d\d(:\d\d)?)?)\Z"
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_BAD_CHARACTERS = re.compile(r"[\x00-\x1f\x7f'\"`\\]")
_OF_ITS_OWN = {
    "partition": "partition",
    "account": "account",
    "gpus": "gpus",
    "gpus-per-node": "gpus",
    "cpus-per-task": "cpus",
    "mem": "memory",
    "time": "time",
}
_OURS = {
    "array": "every run is a job of its own",
    "chdir": "the run starts where this program is installed",
    "clusters": "the job is looked for in the queue of this cluster",
    "error": "everything goes to the run's log",
    "export": "the run needs the variables it was started with",
    "export-file": "the run needs the variables it was started with",
    "input": "a run reads no input",
    "job-name": "it names the run",
    "nodes": "a run uses one node (Keras fits on one only)",
    "ntasks": "a run is one process",
    "ntasks-per-node": "a run is one process",
    "open-mode": "everything goes to the run's log",
    "output": "everything goes to the run's log",
    "parsable": "the answer of sbatch is read",
    "quiet": "the answer of sbatch is read",
    "tasks-per-node": "a run is one process",
    "test-only": "the job would not be submitted",
    "wait": "runs go on in the background",
    "wrap": "the command is the run",
}


def _setting(label: str, help_: str, **bounds: Any) -> Any:
    return Field(None, description=help_, json_schema_extra={"label": label}, **bounds)


class SlurmSettings(BaseModel):
    """Frozen; what is not given is left to SLURM's own defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True, regex_engine="python-re")

    partition: str | None = _setting("Partition", "partition (queue), or several with commas", pattern=r"^[\w.,-]+\Z")
    gpus: str | None = _setting(
        "GPUs",
        "GPUs a run gets on its node: a number, or type:number; not asked for by runs with --device cpu",
        pattern=r"^([\w.-]+:)?\d+\Z",
    )
    cpus: int | None = _setting("CPUs", "number of CPUs a run gets, 1 to 4096", ge=1, le=4096)
    memory: str | None = _setting("Memory", "memory a run gets: a number with K, M, G or T (MiB without)", pattern=r"^\d+[KMGTkmgt]?\Z")
    time: str | None = _setting("Time limit", "minutes, HH:MM:SS or D-HH:MM:SS", pattern=_TIME)
    account: str | None = _setting("Account", "account that is charged", pattern=r"^[\w.@-]+\Z")
    extra: dict[str, str] = Field(
        default_factory=dict,
        description="further options of sbatch: KEY=VALUE, or KEY alone for one without a value",
        json_schema_extra={"label": "Further options"},
    )

    @field_validator("*", mode="before")
    @classmethod
    def _empty_is_not_given(cls, value: Any) -> Any:
        return None if isinstance(value, str) and not value.strip() else value

    @field_validator("gpus", "memory", "time", mode="before")
    @classmethod
    def _numbers_are_texts(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("extra", mode="before")
    @classmethod
    def _extra_options(cls, value: Any) -> dict[str, str]:
        if value is None:
            return {}
        if isinstance(value, str):
            value = value.split()
        pairs = value.items() if isinstance(value, Mapping) else [str(item).partition("=")[::2] for item in value]
        return {checked: str(text).strip() for name, text in pairs if (checked := _checked_option(str(name), str(text)))}

    def minutes(self) -> float | None:
        """The time limit in minutes; `None` when it is not given."""
        if self.time is None:
            return None
        days, _, clock = self.time.rpartition("-")
        parts = [int(part) for part in clock.split(":")]
        if days:
            hours, minutes, seconds = [*parts, 0, 0][:3]
            return int(days) * 1440 + hours * 60 + minutes + seconds / 60
        if len(parts) == 3:
            return parts[0] * 60 + parts[1] + parts[2] / 60
        return parts[0] + (parts[1] / 60 if len(parts) == 2 else 0)

    def given(self) -> dict[str, Any]:
        """What was given, as plain values: for `launch.json`."""
        return {name: value for name, value in self.model_dump(mode="json").items() if value not in (None, {})}


def _checked_option(name: str, value: str) -> str:
    key = name.strip().lstrip("-").replace("_", "-")
    if not _OPTION.fullmatch(key):
        raise ValueError(f"expected KEY=VALUE with a long option of sbatch as KEY, got {name.strip()!r}")
    if key in _OF_ITS_OWN:
        raise ValueError(f"expected no {key}, since there is a setting of its own for it ({_OF_ITS_OWN[key]})")
    if key in _OURS:
        raise ValueError(f"expected no {key}, since {_OURS[key]}")
    if full := next((name for name in (*_OURS, *_OF_ITS_OWN) if name.startswith(key)), None):
        raise ValueError(f"expected options of sbatch in full, got {key!r}, which it takes for {full}")
    if _BAD_CHARACTERS.search(value):
        raise ValueError(f"expected a value of {key} without quotes, backslashes and control characters, got {value!r}")
    return key


def make_settings(values: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> SlurmSettings:
    """Checked settings: `values` by name, and what is not among them (or `None`) from the environment (`VARIABLES`).

    Raises:
        OptionError: one sentence for the first setting that does not fit.
    """
    environ = os.environ if environ is None else environ
    found: dict[str, Any] = {}
    for name in SlurmSettings.model_fields:
        given = values.get(name)
        found[name] = environ.get(VARIABLES[name]) if given is None else given
    try:
        return SlurmSettings.model_validate({**found, **{name: value for name, value in values.items() if name not in found}})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        given = values.get(name) is not None
        where = f"slurm {name}" if given or name not in VARIABLES else VARIABLES[name]
        if first["type"] == "value_error":
            raise OptionError(f"{where}: {first['msg'].removeprefix('Value error, ')}.") from None
        help_ = SlurmSettings.model_fields[name].description if name in SlurmSettings.model_fields else "no such setting"
        raise OptionError(f"{where}: expected {help_}, got {first['input']!r}.") from None


def add_slurm_options(parser: Any) -> None:
    """Add `--launcher` and the settings, as `--slurm-partition` and its like."""
    group = parser.add_argument_group("Launcher")
    group.add_argument(
        "--launcher",
        choices=("local", "slurm"),
        default="local",
        help="where the run is carried out (default: %(default)s); see docs/cluster.md",
    )
    for name, field in SlurmSettings.model_fields.items():
        variable = VARIABLES[name]
        if name == "extra":
            group.add_argument(
                "--slurm-option",
                dest="slurm_extra",
                action="append",
                default=None,
                metavar="KEY=VALUE",
                help=f"{field.description} (or {variable})",
            )
        else:
            group.add_argument(
                f"--slurm-{name}", dest=f"slurm_{name}", default=None, metavar="X", help=f"{field.description} (or {variable})"
            )


def settings_from(args: Any) -> SlurmSettings | None:
    """The settings that the command line and the environment give; `None` for the local launcher.

    Raises:
        OptionError: a setting does not fit, or one was given although the launcher is local.
    """
    values = {name: getattr(args, f"slurm_{name}", None) for name in SlurmSettings.model_fields}
    if args.launcher == "slurm":
        return make_settings(values)
    for name, value in values.items():
        if value is not None:
            option = "--slurm-option" if name == "extra" else f"--slurm-{name}"
            raise OptionError(f"{option}: expected --launcher slurm beside it.")
    return None


def options_text(extra: Mapping[str, str]) -> str:
    """Further options as one types them: `qos=long exclusive`."""
    return " ".join(f"{name}={value}" if value else name for name, value in extra.items())
