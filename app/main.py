"""The command line: `python -m app.main device | cae | score | sweep | bench | runs`.

Exit status 0 when the command did its job, 2 for bad options, 1 for a run or a device that failed. What went wrong is one
sentence on stderr, never a traceback. With `--json`, standard output holds one JSON object and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from app.cae.config import make_config
from app.core.device_policy import DEFAULT_MIN_VRAM_MIB
from app.core.errors import AppError, DeviceError, OptionError
from app.core.words import counted
from app.options import OneSentenceParser, add_config_options, config_values

PROBLEMS_SHOWN = 10
METRIC_NAMES = {
    "image_auroc": "image AUROC",
    "image_ap": "average precision",
    "image_f1": "F1",
    "pixel_auroc": "pixel AUROC",
    "aupro": "AUPRO",
    "aupimo": "AUPIMO",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        args = _parser().parse_args(arguments)
        return int(args.command(args))
    except AppError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output went away (`… | head`): nothing is wrong, and Python must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"The output cannot be written: {error.strerror or error}.", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = OneSentenceParser(prog="python -m app.main", description=__doc__.splitlines()[0] if __doc__ else None)
    names = "device|cae|score|sweep|bench|runs"
    commands = parser.add_subparsers(title="commands", required=True, metavar=names, parser_class=OneSentenceParser)
    _add_device(commands)
    _add_cae(commands)
    from app.runs.score_cli import add_score_parser

    add_score_parser(commands).set_defaults(command=_score)
    from app.runs.cli import add_runs_parser, run_command

    add_runs_parser(commands).set_defaults(command=run_command)
    from app.runs.sweep_cli import add_sweep_parser, sweep_command

    add_sweep_parser(commands).set_defaults(command=sweep_command)
    from app.runs.bench_cli import add_bench_parser, bench_command

    add_bench_parser(commands).set_defaults(command=bench_command)
    return parser


def _add_device(commands: Any) -> None:
    device = commands.add_parser("device", help="which path TensorFlow would take here, and why; imports no TensorFlow")
    device.add_argument(
        "--min-vram-mib", default=str(DEFAULT_MIN_VRAM_MIB), metavar="N", help="free VRAM needed, MiB (default: %(default)s)"
    )
    device.add_argument(
        "--device", default="auto", metavar="auto|cpu|gpu|UUID|INDEX", help="force a path or one GPU (default: %(default)s)"
    )
    device.add_argument("--verify", action="store_true", help="configure TensorFlow and read back what it really uses")
    device.add_argument("--json", action="store_true", help="print one JSON object")
    device.add_argument(
        "--save", type=Path, default=None, metavar="FILE", help="with --verify: also write the JSON object to FILE, whole or not at all"
    )
    device.set_defaults(command=_device)


def _add_cae(commands: Any) -> None:
    cae = commands.add_parser("cae", help="train and score the autoencoder on that path, in a run folder of its own")
    add_config_options(cae)
    runs = cae.add_argument_group("Run")
    runs.add_argument(
        "--runs-dir", type=Path, default=None, metavar="DIR", help="where run folders are made (default: TWOPATH_RUNS_DIR, else runs)"
    )
    runs.add_argument("--run-folder", type=Path, default=None, metavar="DIR", help="carry out the run that this folder was made for")
    runs.add_argument("--json", action="store_true", help="print one JSON object at the end")
    from app.runs.slurm_cli import add_launcher_options

    add_launcher_options(cae)
    cae.set_defaults(command=_cae)


def _device(args: argparse.Namespace) -> int:
    checked = make_config({"min_vram_mib": args.min_vram_mib, "device": args.device})
    if args.save and not args.save.absolute().parent.is_dir():
        raise OptionError(f"--save: expected a file in a folder that exists, got {args.save}.")
    if args.verify:
        return _verify(checked.min_vram_mib, checked.device, args.json, args.save)
    if args.save:
        raise OptionError("--save: expected --verify beside it, since only a verification is saved.")
    from app.core.cpu_probe import cpu_facts
    from app.core.decided import decided_json, decided_profile
    from app.core.device_policy import decide
    from app.core.gpu_probe import gpu_facts
    from app.core.tf_build import tensorflow_build

    gpu, cpu = gpu_facts(), cpu_facts()
    decision = decide(gpu, cpu, checked.min_vram_mib, device=checked.device)
    build = tensorflow_build()
    if args.json:
        _print(decided_json(decision, gpu, cpu, build))
    else:
        _print(decided_profile(decision, gpu, cpu, build).report())
    return 0


def _verify(min_vram_mib: int, device: str, as_json: bool, save: Path | None) -> int:
    from app.core.cpu_probe import cpu_facts
    from app.core.device_policy import decide, decision_json
    from app.core.gpu_probe import gpu_facts
    from app.core.tf_build import tensorflow_build
    from app.core.tf_verify import collect_evidence, render_verification

    gpu, cpu = gpu_facts(), cpu_facts()
    decision = decide(gpu, cpu, min_vram_mib, device=device, build_has_gpu=tensorflow_build().has_gpu)
    verification = collect_evidence(min_vram_mib, device=device)
    used = {name: verification.profile[name] for name in ("selected_device", "reason", "gpu", "path")} if verification.profile else {}
    answer = {**decision_json(decision, gpu, cpu), **used, "verification": verification.to_json()}
    _print(answer if as_json else render_verification(verification))
    if save is not None:
        from app.runs.files import write_json

        write_json(save, answer)
    if verification.profile is None:
        raise DeviceError(f"TensorFlow could not be configured here: {' '.join(verification.problems) or 'it gave no cause.'}")
    return 0


def _cae(args: argparse.Namespace) -> int:
    from app.cae.memory import free_mib
    from app.runs.data_there import refuse_missing_data
    from app.runs.folder import RunFolder, default_runs_dir
    from app.runs.slurm_cli import refuse_wait_alone, submit_command
    from app.runs.slurm_options import settings_from
    from app.runs.worker import run_in_folder, summary

    refuse_wait_alone(args)
    if settings_from(args) is not None:
        if args.run_folder is not None:
            raise OptionError("--launcher slurm: expected no --run-folder beside it; runs resume submits a run that has ended once more.")
        return submit_command(args, make_config(config_values(args)))
    if args.run_folder is not None:
        if config_values(args):
            raise OptionError("--run-folder: expected no other option of the run beside it, since the folder holds its configuration.")
        folder = RunFolder(args.run_folder)
    else:
        config = make_config(config_values(args))
        refuse_missing_data(config.data)
        free_mib()  # refuses a bad TWOPATH_MEMORY_MIB
        folder = RunFolder.create(args.runs_dir or default_runs_dir(), config)
    with _only_our_output() as say:
        # For people, progress goes to standard output wherever that leads; a page's run has its log, a script its JSON.
        people = not args.json and args.run_folder is None
        status = run_in_folder(folder.path, echo=say if people else None)
    result = summary(folder.path)
    if args.json:
        _print(result)
    elif people:
        _print(_in_words(result))
    return status


def _score(args: argparse.Namespace) -> int:
    from app.runs.score_cli import in_words, score
    from app.runs.worker import CANCELLED_STATUS

    with _only_our_output():
        ended = score(args)
    if ended.result is None:
        print(ended.sentence, file=sys.stderr)
        return CANCELLED_STATUS
    _print(ended.result if args.json else in_words(ended.result))
    return 0


def _in_words(result: dict[str, Any]) -> str:
    """A run's end for people: where it lies, what it reached, and why something is not there."""
    lines = [f"Run {result['run_id']} {result['state']}, in {result['run_folder']}"]
    if result["path"]:
        speeds = ((result["train_images_per_s"], "training"), (result["score_images_per_s"], "scoring"))
        rates = ", ".join(f"{name} {value:.3g} images/s" for value, name in speeds if value is not None)
        lines.append(f"{result['path']}: {counted(result['epochs'], 'epoch')}" + (f", {rates}" if rates else ""))
    metrics = result["metrics"]
    missing = metrics.get("not_available") or {}
    for key, name in METRIC_NAMES.items():
        if metrics.get(key) is not None:
            lines.append(f"{name} {metrics[key]:.3f}")
        elif result["state"] == "finished" and missing.get(key):
            lines.append(f"{name} not available: {missing[key]}")
    problems = result["problems"]
    lines += [f"data: {sentence}" for sentence in problems[:PROBLEMS_SHOWN]]
    if len(problems) > PROBLEMS_SHOWN:
        lines.append(f"data: and {len(problems) - PROBLEMS_SHOWN} more, in {Path(result['run_folder']) / 'dataset.json'}")
    if result["state"] == "cancelled":
        lines.append(f"Go on with: python -m app.main runs resume {result['run_id']}")
    return "\n".join(lines)


def _print(value: dict[str, Any] | str) -> None:
    print(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))
    sys.stdout.flush()


@contextlib.contextmanager
def _only_our_output() -> Iterator[Callable[[str], None]]:
    """Send what libraries write to standard output (oneDNN's lines, TensorFlow's) to stderr, so that JSON stays alone on stdout.

    Gives a function that writes a line to the real standard output meanwhile.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)

    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads any more: the run goes on all the same
            os.write(kept, f"{line}\n".encode())

    try:
        yield say
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


if __name__ == "__main__":
    sys.exit(main())
