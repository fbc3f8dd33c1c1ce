"""Conservation, under any interleaving of batches, readings, failures, resets and freezes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.windows import MS, accountant
from wattserve_server.energy.reading import Reading
from wattserve_server.energy.receipt import Line, Receipt
from wattserve_server.energy.units import Energy
from wattserve_server.energy.window import Charge, Window

events = st.lists(
    st.one_of(
        st.tuples(
            st.just("batch"), st.integers(1, 400), st.lists(st.integers(1, 200), min_size=1, max_size=8)
        ),
        st.tuples(st.just("read"), st.integers(0, 5_000_000), st.just([])),
        st.tuples(st.just("pause"), st.integers(1, 3000), st.just([])),
        st.tuples(st.just("reset"), st.integers(0, 1000), st.just([])),
        st.tuples(st.just("fail"), st.integers(0, 1), st.just([])),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=300)
@given(events, st.sampled_from([None, 0.0, 12.5]))
def test_every_microjoule_is_somewhere_and_nothing_is_negative(
    steps: list[tuple[str, int, list[int]]], idle_watts: float | None
) -> None:
    books = accountant(idle_watts)
    now_ns, counter, ran = 0, 1_000_000, 0
    fresh: list[Window] = []
    charged: dict[Line, Charge] = {}

    def settle() -> None:
        for charge in books.advance(fresh, now_ns):
            assert charge.line not in charged
            charged[charge.line] = charge
        fresh.clear()
        ledger = books.ledger
        assert ledger.residual_uj() == 0
        amounts = [ledger.measured_uj, ledger.idle_uj, ledger.idle_shared_uj, ledger.unattributed_uj]
        amounts += [ledger.pending_uj, *(totals.active_uj for totals in ledger.active.values())]
        assert min(amounts) >= 0
        assert ledger.idle_shared_uj <= ledger.idle_uj

    for kind, size, lengths in steps:
        if kind == "batch":
            receipt = Receipt("r", "", "fp32", "cpu", 0)
            lines = tuple(Line(receipt, length) for length in lengths)
            ran += len(lines)
            variant = "fp32" if size % 2 else "bf16"
            start_ns = now_ns
            now_ns += size * MS // 10
            fresh.append(Window(variant, start_ns, now_ns, tuple(lengths), max(lengths), lines))
        elif kind == "read":
            now_ns += MS
            counter += size
            books.observe(Reading(now_ns, Energy(counter)))
            settle()
        elif kind == "pause":
            now_ns += size * MS
        elif kind == "reset":
            now_ns += MS
            counter = size
            books.observe(Reading(now_ns, Energy(counter)))
        else:
            now_ns += MS
            books.failed(now_ns, "lost")
            settle()
    for _ in range(3):
        now_ns += 50 * MS
        counter += 1_000_000
        books.observe(Reading(now_ns, Energy(counter)))
        settle()
    assert len(charged) == ran  # everything that ran was charged, or told that nobody knows
    assert books.pending_windows == 0
    known = sum(charge.energy_uj for charge in charged.values() if charge.energy_uj is not None)
    assert known == sum(totals.active_uj for totals in books.ledger.active.values())
    for charge in charged.values():
        assert (charge.energy_uj is None) == bool(charge.reason)
