import pytest

from harness.kernels.addresses import AddressFault, Bounds
from harness.kernels.topk_call import check_plan
from harness.kernels.topk_plan import row_plan, topk_plan
from harness.kernels.topk_rows import check_scratch


def plan_of(n_rows, num_cols, top_k=2048, **keywords):
    return topk_plan(n_rows=n_rows, num_cols=num_cols, top_k=top_k, **keywords)


@pytest.mark.parametrize(
    ("rows", "cols", "overflows"),
    [
        (4096, 262208, False),
        (4096, 262209, True),
        (4096, 262144, False),
        (4097, 262144, True),
    ],
)
def test_public_scratch_pairs_overflow_by_arithmetic(rows, cols, overflows):
    single = plan_of(rows, cols, chunked=False)
    assert bool(single.overflow_rows(single.row_words)) == overflows
    chunked = plan_of(rows, cols)
    assert not chunked.overflow_rows(chunked.row_words)


def test_overflowing_row_starts_behind_the_32_bit_range():
    plan = plan_of(4096, 262209, chunked=False)
    assert list(plan.overflow_rows(plan.row_words)) == [4095]
    assert 4095 * plan.row_words == 2_147_491_710
    bounds = Bounds(kernel="indexer_top_k_wrapper", findings=[])
    check_scratch(bounds, plan, row=4095, half=0, first=0, count=0)  # nothing spilled
    check_scratch(bounds, plan, row=4094, half=0, first=0, count=100)
    with pytest.raises(AddressFault) as caught:
        check_scratch(bounds, plan, row=4095, half=0, first=0, count=1)
    evidence = caught.value.evidence
    assert (evidence.klass, evidence.operand, evidence.row) == ("int32_overflow", "scratch", 4095)
    assert evidence.element_offset == 2_147_491_710 - 2**32
    assert evidence.element_offset < evidence.allowed[0]


def test_4096_by_262144_fits_to_the_last_word():
    plan = plan_of(4096, 262144, chunked=False)
    assert plan.n_rows * plan.row_words == 2**31
    bounds = Bounds(kernel="indexer_top_k_wrapper", findings=[])
    check_scratch(bounds, plan, row=4095, half=1, first=262143, count=1)
    assert bounds.findings == []


def test_scratch_bytes_are_two_words_per_fp32_score():
    assert plan_of(10, 100).scratch_bytes == 2 * 10 * 100 * 4
    assert plan_of(10, 100, element_bytes=2).scratch_bytes == 10 * 100 * 4


def test_chunks_cover_the_rows_at_aligned_steps():
    plan = plan_of(4100, 262209, next_n=3 if 4100 % 3 == 0 else 4)
    assert [start for start, _ in plan.launches] == [0, 4088]
    assert sum(count for _, count in plan.launches) == 4100
    assert 4088 % 8 == 0
    assert all(count * plan.row_words < 2**31 for _, count in plan.launches)
    assert plan_of(4096, 262144).launches == ((0, 4096),)


@pytest.mark.parametrize(
    ("cols", "defects", "refused"),
    [
        (2**27, frozenset(), False),
        (2**27 + 1, frozenset(), True),
        (2**27 + 1, frozenset({"d311_residue"}), False),
        (2**27 + 1, frozenset({"d311"}), False),
    ],
)
def test_a_step_that_does_not_fit(cols, defects, refused):
    plan = plan_of(16, cols)
    if refused:
        with pytest.raises(ValueError, match="aligned step"):
            check_plan(plan, defects)
    else:
        check_plan(plan, defects)


def test_residue_still_launches_once_and_overflows():
    plan = plan_of(16, 2**27 + 1)
    assert plan.launches == ((0, 16),)
    assert list(plan.overflow_rows(plan.row_words)) == list(range(8, 16))


@pytest.mark.parametrize(
    ("rows", "cols", "many", "threads", "capacity", "spills"),
    [
        (148, 1000, False, 256, 1024, False),
        (149, 1000, True, 512, 256, True),
        (148, 4200, False, 1024, 8192, False),
        (149, 4200, True, 512, 512, True),
        (148, 3000, False, 512, 4096, False),
        (200, 16384, True, 512, 1024, True),
        (200, 32768, True, 512, 1024, True),
        (200, 65536, True, 512, 2048, True),
        (200, 65537, True, 512, 3072, True),
        (200, 262144, True, 512, 4096, True),
        (16, 65536, False, 1024, 32768, True),
        (16, 65537, False, 1024, 16384, True),
        (149, 200, True, 512, 256, False),
    ],
)
def test_builds(rows, cols, many, threads, capacity, spills):
    plan = plan_of(rows, cols)
    assert (plan.many_rows, plan.threads, plan.capacity, plan.spills) == (
        many,
        threads,
        capacity,
        spills,
    )


def test_ids_are_16_bits_up_to_a_bucket_of_65536():
    assert not plan_of(4, 65536).wide_ids
    assert plan_of(4, 65537).wide_ids


def test_half_types_load_sixteen_at_a_time():
    plan = plan_of(4, 5000, element_bytes=2)
    assert (plan.vector, plan.threads, plan.capacity, plan.words) == (16, 512, 8192, 1)
    assert plan_of(4, 4096, element_bytes=2).threads == 256
    assert plan_of(4, 65536, element_bytes=2).threads == 1024


@pytest.mark.parametrize(
    ("rows", "cols", "top_k", "refused"),
    [
        (200, 4200, 705, True),
        (200, 4200, 704, False),
        (200, 4200, 511, False),
        (16, 1000, 705, True),
        (16, 1000, 255, False),
        (16, 9000, 705, False),
        (16, 9000, 1025, True),
    ],
)
def test_odd_top_k_above_the_threads(rows, cols, top_k, refused):
    plan = plan_of(rows, cols, top_k)
    assert plan.refuses_odd_top_k == refused
    check_plan(plan, frozenset())
    if refused:
        with pytest.raises(AssertionError, match="odd"):
            check_plan(plan, frozenset({"d406"}))
    else:
        check_plan(plan, frozenset({"d406"}))


def test_phantom_lanes_of_the_public_example():
    plan = plan_of(200, 4200)
    loads = row_plan(plan, length=4200, start_bytes=0)
    assert (plan.tile, loads.tiles, loads.phantom) == (4096, 2, 3992)
    assert loads.phantom_end - 1 == 8191
    assert 4200 + loads.phantom - plan.capacity == 7680
    last_row = 199 * 4200
    assert last_row + loads.phantom_end - 200 * 4200 == 3992


@pytest.mark.parametrize(
    ("start_bytes", "prologue"), [(0, 0), (4, 7), (28, 1), (32, 0), (16820, 3)]
)
def test_prologue_reaches_the_next_32_bytes(start_bytes, prologue):
    loads = row_plan(plan_of(4, 100), length=50, start_bytes=start_bytes)
    assert loads.prologue == prologue
    assert loads.prologue + loads.aligned + loads.tail == 50
    assert loads.aligned % 8 == 0
    assert loads.tail < 8


def test_whole_tiles_leave_no_phantom():
    assert row_plan(plan_of(4, 2048), length=2048, start_bytes=0).phantom == 0
