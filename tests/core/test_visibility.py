"""CUDA_VISIBLE_DEVICES by CUDA's rules, on GPUs that are only values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_machines import environment_of

from app.core.facts import Gpu
from app.core.visibility import FASTEST_FIRST, apply_visibility

UUIDS = [f"GPU-{n:08x}-1111-2222-3333-44444444444{n}" for n in range(3)]
THREE = tuple(Gpu(index=n, uuid=UUIDS[n], name="NVIDIA A30", total_mib=24576, free_mib=24000) for n in range(3))
PARENT = Gpu(index=0, uuid=UUIDS[0], name="NVIDIA A100", mig="parent")
SLICES = tuple(
    Gpu(
        index=0,
        uuid=f"MIG-{letter * 8}-bbbb-5ccc-8ddd-eeeeeeeeeeee",
        name=f"A100 MIG {n}",
        mig="1g.5gb",
        mig_parent_uuid=UUIDS[0],
        mig_instance=(n, 0),
    )
    for n, letter in enumerate("ab", start=1)
)
DIVIDED = (PARENT, *SLICES, THREE[1])


def order(gpus: tuple[Gpu, ...], value: str | None, **variables: str) -> list[int]:
    """Positions in `gpus` by logical index."""
    environ = dict(variables) if value is None else {"CUDA_VISIBLE_DEVICES": value, **variables}
    shown = apply_visibility(gpus, environ).gpus
    placed = sorted((gpu.logical_index, place) for place, gpu in enumerate(shown) if gpu.logical_index is not None)
    assert [logical for logical, _ in placed] == list(range(len(placed)))
    return [place for _, place in placed]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2]),
        ("0,1,2", [0, 1, 2]),
        ("2,0", [2, 0]),
        ("1", [1]),
        ("2,-1,1", [2]),
        ("-1", []),
        ("", []),
        ("   ", []),
        ("7", []),
        ("1,7,0", [1]),
        ("1,1", []),
        ("0,1,0", []),
        (" 1 , 2 ", [1, 2]),
        ("+1", [1]),
        ("1gpu,2ampere", [1, 2]),
        ("0x1", [0]),
        ("01", [1]),
        ("none", []),
        ("NoDevFiles", []),
        ("all", []),
        ("0,,1", [0]),
        ("0,one,1", [0]),
        (",0", []),
        ("0,", [0]),
        ("99999999999999999999", []),
        (UUIDS[1], [1]),
        ("GPU-00000001", [1]),
        ("GPU-0000000", []),
        (f"{UUIDS[1]},{UUIDS[0]}", [1, 0]),
        (f"{UUIDS[1]},GPU-99999999", [1]),
        ("GPU-99999999-0000-0000-0000-000000000000", []),
        (f"GPU-99999999,{UUIDS[0]}", []),
        (f"{UUIDS[1]},{UUIDS[1]}", []),
        (f"GPU-00000001,{UUIDS[1]}", []),
        (f" {UUIDS[2]} , {UUIDS[0]} ", [2, 0]),
        (f"{UUIDS[1]},0", [1]),
        (f"0,{UUIDS[1]}", [0]),
        ("MIG-aaaaaaaa-bbbb-5ccc-8ddd-eeeeeeeeeeee", []),
        ("gpu-00000001", []),
    ],
)
def test_value(value: str | None, expected: list[int]) -> None:
    assert order(THREE, value) == expected
    shown = apply_visibility(THREE, {} if value is None else {"CUDA_VISIBLE_DEVICES": value}).gpus
    assert [place for place, gpu in enumerate(shown) if gpu.visible] == sorted(expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A28-uuid", [1]),
        ("A28-short", [1]),
        ("A28-two", [1, 0]),
        ("A28-unknown", []),
        ("A31-reorder", [2, 0]),
        ("A31-stop", [2]),
        ("A31-dup", []),
        ("A31-range", []),
        ("A31-spaces", [1, 2]),
    ],
)
def test_recorded_environment(name: str, expected: list[int]) -> None:
    environ = environment_of(name)
    assert order(THREE, environ.pop("CUDA_VISIBLE_DEVICES"), **environ) == expected


def test_nothing_set_says_nothing() -> None:
    assert apply_visibility(THREE, {}).note is None
    assert apply_visibility(THREE, {"NVIDIA_VISIBLE_DEVICES": "none"}).gpus == apply_visibility(THREE, {}).gpus


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("7", "there is no GPU 7"),
        ("", "set, but empty"),
        ("1,1", "twice"),
        ("GPU-0000000", "more than one"),
        ("GPU-99999999", "is not here"),
        ("abc", "'abc' is no number"),
        ("2,0", "GPU 2 as 0, GPU 0 as 1"),
        ("2,-1,1", "-1 hides what follows"),
    ],
)
def test_note_names_the_variable_and_why(value: str, words: str) -> None:
    note = apply_visibility(THREE, {"CUDA_VISIBLE_DEVICES": value}).note or ""
    assert note.startswith("CUDA_VISIBLE_DEVICES")
    assert words in note


@pytest.mark.parametrize(
    ("gpus", "value", "words"),
    [
        (DIVIDED, SLICES[1].uuid, "shows 1 of 3 GPUs and MIG slices to this process: GPU 0 MIG 1g.5gb (MIG-bbbbbbbb…) as 0"),
        (DIVIDED, "1,0", "GPU 1 as 0, GPU 0 MIG 1g.5gb (MIG-aaaaaaaa…) as 1"),
        (
            (PARENT, SLICES[0], replace(SLICES[1], mig="2g.10gb")),
            SLICES[1].uuid,
            "shows 1 of 2 MIG slices to this process: GPU 0 MIG 2g.10gb as 0",
        ),
        (THREE, environment_of("A29-legacymig")["CUDA_VISIBLE_DEVICES"], "GPU 0 MIG 1/0 as 0"),
    ],
)
def test_note_names_the_slice(gpus: tuple[Gpu, ...], value: str, words: str) -> None:
    assert words in (apply_visibility(gpus, {"CUDA_VISIBLE_DEVICES": value}).note or "")


def test_numbers_are_doubtful_only_where_the_gpus_differ() -> None:
    mixed = (THREE[0], replace(THREE[1], name="NVIDIA T600"))
    doubt = FASTEST_FIRST.format(variable="CUDA_VISIBLE_DEVICES")
    noted = {
        (kind, order_set): apply_visibility(gpus, {"CUDA_VISIBLE_DEVICES": "1", **variables}).note or ""
        for kind, gpus in (("mixed", mixed), ("same", THREE))
        for order_set, variables in ((False, {}), (True, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}))
    }
    assert {key: doubt in note for key, note in noted.items()} == {
        ("mixed", False): True,
        ("mixed", True): False,
        ("same", False): False,
        ("same", True): False,
    }
    assert doubt not in (apply_visibility(mixed, {"CUDA_VISIBLE_DEVICES": UUIDS[0]}).note or "")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [1]),
        ("MIG-aaaaaaaa-bbbb-5ccc-8ddd-eeeeeeeeeeee", [1]),
        ("MIG-bbbbbbbb", [2]),
        ("MIG-aaaaaaaa,MIG-bbbbbbbb", [1]),
        (f"MIG-{UUIDS[0]}/2/0", [2]),
        ("0", [1]),
        (UUIDS[0], [1]),
        ("1", [3]),
        ("1,0", [3, 1]),
        ("MIG-cccccccc", []),
    ],
)
def test_slices(value: str | None, expected: list[int]) -> None:
    assert order(DIVIDED, value) == expected


def test_without_the_variable_every_slice_can_be_chosen() -> None:
    assert all(gpu.visible for gpu in apply_visibility(DIVIDED, {}).gpus)


def test_a_slice_in_the_legacy_form_that_no_probe_listed() -> None:
    entry = environment_of("A29-legacymig")["CUDA_VISIBLE_DEVICES"]
    parent, found, other, _ = apply_visibility(THREE, {"CUDA_VISIBLE_DEVICES": entry}).gpus
    assert (parent.mig, parent.visible, other.visible) == ("parent", True, False)
    assert (found.uuid, found.index, found.logical_index, found.free_mib, found.mig_instance) == (entry, 0, 0, None, (1, 0))
    assert "unknown" in (found.problem or "")


@given(st.text(max_size=60), st.sampled_from([(), THREE, DIVIDED]))
def test_no_text_breaks_it(value: str, gpus: tuple[Gpu, ...]) -> None:
    places = order(gpus, value)
    assert len(set(places)) == len(places)
    assert all(gpus[place].mig != "parent" for place in places)


@given(st.lists(st.sampled_from(["0", "1", "2", "3", "-1", "", "x", UUIDS[0], UUIDS[2], "GPU-", "MIG-"]), max_size=6))
def test_a_longer_list_never_brings_a_hidden_one_back(entries: list[str]) -> None:
    """What an entry hid stays hidden whatever follows, and a list without duplicates only ever grows at its end."""
    before = order(THREE, ",".join(entries))
    after = order(THREE, ",".join([*entries, "x", "1"]))
    assert after == before
