"""What nvidia-smi prints, as text: no text makes the parser raise or return nonsense."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.facts import Gpu
from app.core.gpu_figures import MAX_PLAUSIBLE_MIB, RawMemory, settle_memory
from app.core.gpu_trouble import SENTENCES, printable, trouble
from app.core.smi_table import FIELDS, SMALL_FIELDS, Table, number, parse_slices, parse_table

UUID = "GPU-00000000-1111-2222-3333-444444444440"


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("15900", 15900),
        (" 15900 ", 15900),
        ("15900.5", 15900.5),
        ("15900 MiB", 15900),
        ("16 GiB", 16384),
        ("2048 KiB", 2),
        ("+5", 5),
        ("", None),
        ("-5", None),
        ("nan", None),
        ("inf", None),
        ("1e5", None),
        ("[N/A]", None),
        ("١٢٣", None),
        ("15_900", None),
        ("15 900", None),
        ("9" * 16, None),
    ],
)
def test_number(cell: str, value: float | None) -> None:
    assert number(cell) == value


def row(fields: tuple[str, ...], **cells: str) -> str:
    usual = {"index": "0", "uuid": UUID, "memory.total": "4096", "memory.free": "4000", "name": "NVIDIA T600"}
    return ", ".join({**usual, **cells}.get(field, "[N/A]") for field in fields)


@pytest.mark.parametrize(
    "fields", [FIELDS, SMALL_FIELDS, ("memory.total", "memory.free", "name"), ("index", "memory.total", "memory.free")]
)
def test_any_part_of_the_question_is_understood(fields: tuple[str, ...]) -> None:
    table = parse_table(row(fields), fields)
    assert [(gpu.index, gpu.total_mib, gpu.free_mib) for gpu in table.gpus] == [(0, 4096, 4000)]


def test_a_row_short_of_cells_keeps_its_place_as_sick() -> None:
    table = parse_table(f"{row(FIELDS)}\n1, GPU-00000001-x, [GPU is lost]\n{row(FIELDS, index='2', uuid='GPU-2')}\n")
    assert [(gpu.index, gpu.uuid, gpu.free_mib) for gpu in table.gpus] == [(0, UUID, 4000), (1, "GPU-00000001-x", None), (2, "GPU-2", 4000)]
    assert "[GPU is lost]" in table.problems[0]
    assert table.gpus[1].problem == table.problems[0]


def test_a_shifted_row_is_left_out_and_shifts_nothing() -> None:
    table = parse_table(row(FIELDS, **{"memory.total": UUID}))
    assert all(gpu.total_mib is None and gpu.free_mib is None for gpu in table.gpus)
    assert table.problems


@pytest.mark.parametrize("field", FIELDS[4:-1])
@pytest.mark.parametrize("said", ["N.A.", "k. A.", "n.v.", "n/a.", "15900.", "1.5e4", "8", "?"])
def test_an_odd_cell_costs_only_itself(field: str, said: str) -> None:
    """Whatever a driver's language writes for "not available", the other cells of the row stand."""
    cells = {
        "memory.total": "16376",
        "memory.free": "15900",
        "memory.used": "100",
        "memory.reserved": "376",
        "mig.mode.current": "Disabled",
    }
    table = parse_table(row(FIELDS, **{**cells, field: said}))
    (gpu,) = table.gpus
    told = number(said)
    assert gpu.uuid == UUID
    if field != "memory.free":
        free = min(15900, gpu.total_mib or 15900)
        assert (gpu.free_mib, gpu.problem) == (free, None)
    else:
        assert gpu.free_mib == told
    if field != "memory.total":
        assert gpu.total_mib == 16376
    if field == "memory.used":
        assert gpu.used_mib == (100 if told is None else told)
    assert all("does not fit" not in sentence for sentence in table.problems)


@pytest.mark.parametrize("mig", ["Disabled", "Enabled", "[N/A]", "N.A."])
@pytest.mark.parametrize("fields", [FIELDS, SMALL_FIELDS])
def test_a_comma_in_a_figure_is_known_by_the_name_it_shifts(mig: str, fields: tuple[str, ...]) -> None:
    usual = {"compute_cap": "8.6", "power.draw": "20.00", "driver_version": "550.54.14", "mig.mode.current": mig}
    assert parse_table(row(fields, **usual, name="NVIDIA Board, Rev 2"), fields).gpus[0].free_mib == 4000
    table = parse_table(row(fields, **{**usual, "memory.total": "16,376"}), fields)
    assert all(gpu.free_mib is None for gpu in table.gpus)
    assert "does not fit" in table.problems[0]


@pytest.mark.parametrize(
    ("name", "said", "words"),
    [
        (
            "NVIDIA A30",
            "[Unknown Error]",
            "GPU 0 'NVIDIA A30' does not tell its UUID ('Unknown Error'), so a run names it to CUDA by its number 0",
        ),
        ("NVIDIA A30", "", "does not tell its UUID ('nothing')"),
        ("NVIDIA A30", UUID, None),
        ("Orin (nvgpu)", "[N/A]", None),
    ],
)
def test_what_follows_from_an_unreadable_uuid(name: str, said: str, words: str | None) -> None:
    table = parse_table(row(FIELDS, uuid=said, name=name))
    assert table.gpus[0].problem is None
    assert len(table.problems) == (words is not None)
    assert words is None or words in table.problems[0]


@pytest.mark.parametrize(
    ("field", "said", "words"),
    [
        ("memory.free", "99999999999", "reports 99999999999 MiB of free memory, which is not credible"),
        ("memory.free", "9" * 20, f"reports {'9' * 20} MiB of free memory, which is not credible"),
        ("memory.free", "-5", "reports -5 MiB of free memory, which is not credible"),
        ("memory.free", "k. A.", "does not report its free memory (k. A)"),
        ("memory.total", "99999999999", "reports a memory of 99999999999 MiB, which is not credible"),
    ],
)
def test_a_figure_that_cannot_be_is_told_as_such(field: str, said: str, words: str) -> None:
    (problem,) = parse_table(row(FIELDS, **{field: said})).problems
    assert words in problem


def test_slices_under_a_gpu_that_the_table_did_not_list() -> None:
    text = "GPU 0: A (UUID: GPU-0)\n  MIG 1g.5gb     Device  0: (UUID: MIG-a)\nGPU 5: B\n  MIG 1g.5gb     Device  0: (UUID: MIG-b)\nnoise\n"
    found = parse_slices(text, (Gpu(index=0, uuid="GPU-0", name="A"),))
    assert [gpu.uuid for gpu in found] == ["MIG-a"]


CELLS = st.sampled_from(
    [
        "0",
        "1",
        UUID,
        "4096",
        "8192",
        "4,096",
        "8192 MiB",
        "-0",
        "9" * 400,
        "-1",
        "nan",
        "[N/A]",
        "[Unknown Error]",
        "",
        " ",
        "1e999",
        "99999999999999",
        "NVIDIA T600",
        "a, b",
        "\x00",
        "\n",
        "Enabled",
    ]
)
ROWS = st.lists(CELLS, min_size=1, max_size=len(FIELDS) + 2).map(", ".join)
TEXTS = st.lists(ROWS | st.just(row(FIELDS)) | st.text(max_size=60), max_size=8).map("\n".join) | st.text(max_size=300)


def check_table(table: Table) -> None:
    indices = [gpu.index for gpu in table.gpus]
    assert len(set(indices)) == len(indices)
    for gpu in table.gpus:
        for figure in (gpu.total_mib, gpu.free_mib, gpu.used_mib, gpu.reserved_mib):
            assert figure is None or 0 <= figure <= MAX_PLAUSIBLE_MIB
        assert gpu.total_mib != 0
        assert gpu.total_mib is None or gpu.free_mib is None or gpu.free_mib <= gpu.total_mib
        assert gpu.power_w is None or math.isfinite(gpu.power_w)
        assert gpu.name.isprintable()
        assert gpu.name
        assert gpu.free_mib is not None or gpu.unified_memory or gpu.problem
    assert all(sentence.isprintable() for sentence in table.problems)


@given(TEXTS, st.sampled_from([FIELDS, SMALL_FIELDS, ("memory.total", "memory.free", "name")]))
def test_no_text_breaks_the_table(text: str, fields: tuple[str, ...]) -> None:
    check_table(parse_table(text, fields))


@given(st.binary(max_size=400))
def test_no_bytes_break_the_table(raw: bytes) -> None:
    check_table(parse_table(raw.decode("utf-8", "replace")))


def test_a_megabyte_of_noise_is_read_in_bounded_time() -> None:
    for noise in ("a\n" * 500_000, "," * 1_000_000, "0, GPU-x, 1\n" * 80_000, "unable to determine the device handle for gpu" * 20_000):
        check_table(parse_table(noise))


@given(st.text(max_size=200))
def test_no_text_breaks_the_list_of_slices(text: str) -> None:
    assert parse_slices(f"GPU 0: A\n{text}", (Gpu(index=0, uuid=None, name="A"),)) is not None


FIGURES = st.none() | st.floats() | st.integers(-(2**64), 2**64)


@given(FIGURES, FIGURES, FIGURES, FIGURES, st.booleans(), st.sampled_from(["NVIDIA GB10", "NVIDIA A30"]))
def test_no_figures_become_nonsense(
    total: float | None, free: float | None, used: float | None, reserved: float | None, unsupported: bool, name: str
) -> None:
    gpu, sentence = settle_memory(Gpu(index=0, uuid=None, name=name), RawMemory(total, free, used, reserved, unsupported=unsupported))
    check_table(Table((gpu,), problems=(sentence,) if sentence else ()))


@given(st.sampled_from(sorted(SENTENCES)), st.text(max_size=300))
def test_every_trouble_is_one_short_printable_sentence(kind: str, detail: str) -> None:
    found = trouble(kind, "NVML", detail=detail, seconds=2, status=3, path="/p", since="12:00:00")
    assert found.sentence.isprintable()
    assert found.sentence.endswith(".")
    assert len(found.sentence) < 500
    assert printable(detail) == printable(printable(detail))
