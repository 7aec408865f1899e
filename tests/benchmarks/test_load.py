"""Arithmetic of the load figures."""

from __future__ import annotations

import asyncio
import math

import pytest

from benchmarks.load_client import Client
from benchmarks.load_figures import bounded, growth, open_loop, percentile, row, table


def test_a_percentile_lies_between_the_values_next_to_it() -> None:
    values = [float(n) for n in range(101)]
    assert [percentile(values[::-1], p) for p in (50, 95, 99)] == [50.0, 95.0, 99.0]
    assert percentile([0.0, 10.0], 95) == pytest.approx(9.5)
    assert percentile([7.0], 99) == 7.0


def test_a_row_says_median_p95_p99_and_the_worst() -> None:
    assert row("get", [float(n) for n in range(101)]) == [
        "get", "101", "50.0", "95.0", "99.0", "100.0",
    ]  # fmt: skip


def test_growth_is_of_the_99th_percentile() -> None:
    assert growth([1.0] * 98 + [10.0] * 2, [3.0] * 98 + [15.0] * 2) == pytest.approx(1.5)


def test_a_table_is_markdown() -> None:
    assert table(["", "n"], [["a", "1"]]) == "|  | n |\n| --- | --- |\n| a | 1 |"


@pytest.mark.parametrize(
    ("found", "held"), [(99.9, True), (100.0, False), (math.inf, False), (math.nan, False)]
)
def test_a_bound_is_held_below_it_alone(
    found: float, held: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bounded("p99", found, 100.0, "ms") is held
    assert ("held" if held else "**missed**") in capsys.readouterr().out


def test_a_stall_counts_for_all_that_were_due_in_it() -> None:
    """A closed loop would count the 200 ms once."""
    door = asyncio.Lock()

    async def ask(number: int) -> None:
        async with door:
            await asyncio.sleep(0.2 if number == 0 else 0.0)

    late = asyncio.run(open_loop(100, 20, ask))
    assert len(late) == 20
    assert sum(one > 50 for one in late) >= 14


def test_asking_does_not_wait_for_answers() -> None:
    asked: list[int] = []
    all_asked = asyncio.Event()

    async def ask(number: int) -> None:
        asked.append(number)
        if len(asked) == 10:
            all_asked.set()
        await asyncio.wait_for(all_asked.wait(), 5)

    assert len(asyncio.run(open_loop(200, 10, ask))) == 10
    assert sorted(asked) == list(range(10))


def test_the_client_keeps_its_connection_and_replaces_one_that_ended() -> None:
    asked: list[bytes] = []
    opened = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        for _ in range(2):  # then it ends, as a server does with one that was idle for long
            head = await reader.readuntil(b"\r\n\r\n")
            asked.append(head.split(b"\r\n")[0] + await reader.readexactly(2))
            writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 3\r\n\r\nyes")
        writer.close()

    async def run() -> list[bytes]:
        server = await asyncio.start_server(serve, "127.0.0.1")
        port = server.sockets[0].getsockname()[1]
        async with server, Client(f"http://127.0.0.1:{port}/v1", {}, most=1) as client:
            return [await client.ask("/jobs", "POST", b"{}") for _ in range(3)]

    assert asyncio.run(run()) == [b"yes"] * 3
    assert asked == [b"POST /v1/jobs HTTP/1.1{}"] * 3
    assert opened == 2


def test_the_client_takes_no_refusal_for_an_answer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nslow")
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1")
        port = server.sockets[0].getsockname()[1]
        async with server, Client(f"http://127.0.0.1:{port}", {}, most=1) as client:
            await client.ask("/jobs")

    with pytest.raises(RuntimeError, match="429 slow"):
        asyncio.run(run())
