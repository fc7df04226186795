"""Which items share a batch, and when it begins."""

import asyncio
import threading
import time

import pytest

from padir.serving.batcher import Batcher, Item
from padir.serving.limits import RequestRefused
from padir.serving.metrics import Metrics


class Device:
    """A decode that doubles numbers; it waits for `free`, and keeps each batch."""

    def __init__(self):
        self.batches, self.free = [], threading.Event()
        self.free.set()

    def __call__(self, kind, contents):
        self.batches.append((kind, list(contents)))
        assert self.free.wait(30)
        if "broken" in contents:
            raise ValueError("broken")
        return [2 * content for content in contents]


def item(content, *, kind="k", width=8, request=None, seconds=30.0):
    return Item(kind, width, content, request or object(), time.monotonic() + seconds)


def run(test, *, max_wait=0.0, max_queue=100, sizes=(1, 4)):
    """Runs test(batcher, device) in an event loop, with a started batcher; returns the metrics."""
    metrics = Metrics()

    async def whole():
        device = Device()
        batcher = Batcher(device, sizes, max_wait=max_wait, max_queue=max_queue, metrics=metrics)
        batcher.start()
        try:
            await test(batcher, device)
        finally:
            device.free.set()
            await batcher.close()

    asyncio.run(whole())
    return metrics


async def hold(batcher, device):
    """Makes the device busy with one item, which is returned."""
    device.free.clear()
    first = item(0)
    batcher.submit([first])
    while not device.batches:
        await asyncio.sleep(0.001)
    return first


async def values(items):
    return [answer.value for answer in await asyncio.gather(*(each.future for each in items))]


def test_one_request_never_waits():
    """The longest wait is an hour; neither one text nor several of one request wait for others."""

    async def test(batcher, device):
        alone, request = item(1), object()
        batcher.submit([alone])
        assert await values([alone]) == [2]
        several = [item(number, request=request) for number in (2, 3)]
        batcher.submit(several)
        assert await values(several) == [4, 6]
        assert device.batches == [("k", [1]), ("k", [2, 3])]

    run(test, max_wait=3600.0)


def test_several_requests_wait_for_a_full_batch():
    async def test(batcher, device):
        first = await hold(batcher, device)
        items = [item(number) for number in (1, 2, 3)]
        batcher.submit(items)
        device.free.set()
        await first.future
        # Three of two requests or more, of a batch of four: only a fourth starts it within the hour.
        await asyncio.sleep(0.05)
        assert len(device.batches) == 1
        items.append(item(4))
        batcher.submit(items[-1:])
        assert await values(items) == [2, 4, 6, 8]
        assert device.batches[1:] == [("k", [1, 2, 3, 4])]

    run(test, max_wait=3600.0)


def test_the_wait_ends():
    async def test(batcher, device):
        await hold(batcher, device)
        items = [item(number) for number in (1, 2, 3)]
        batcher.submit(items)
        device.free.set()
        assert await values(items) == [2, 4, 6]

    run(test, max_wait=0.01)


def test_batches_are_of_one_kind_and_width_and_free_rows_take_narrower_items():
    async def test(batcher, device):
        await hold(batcher, device)
        items = [
            item("a", width=16),
            item("b", width=8),
            item("c", kind="other", width=16),
            item("d", width=16),
            item("e", width=24),
            item("f", width=8),
            item("g", width=8),
        ]
        batcher.submit(items)
        device.free.set()
        assert await values(items) == ["aa", "bb", "cc", "dd", "ee", "ff", "gg"]
        assert device.batches[1:] == [("k", ["a", "d", "b", "f"]), ("other", ["c"]), ("k", ["e"]), ("k", ["g"])]

    metrics = run(test)
    assert 'padir_batch_size_bucket{le="4"} 5' in metrics.render()
    assert "padir_batch_size_sum 8" in metrics.render()


def test_a_full_queue_refuses_at_once_and_takes_nothing_of_the_request():
    async def test(batcher, device):
        await hold(batcher, device)
        batcher.submit([item(number) for number in range(3)])
        with pytest.raises(RequestRefused, match="the queue of 4 texts is full") as refused:
            batcher.submit([item(5), item(6)])
        assert refused.value.status == 429 and len(batcher) == 3
        batcher.submit([item(7)])
        assert len(batcher) == 4

    run(test, max_queue=4)


def test_who_has_left_is_not_decoded():
    async def test(batcher, device):
        await hold(batcher, device)
        gone, stays = item("gone"), item("stays")
        batcher.submit([gone, stays])
        batcher.withdraw([gone], "client")
        assert len(batcher) == 1 and gone.future.cancelled()
        device.free.set()
        assert await values([stays]) == ["staysstays"]
        assert device.batches[1:] == [("k", ["stays"])]

    assert run(test).dropped.value("client") == 1


def test_who_leaves_during_the_decode_disturbs_nobody():
    async def test(batcher, device):
        first = await hold(batcher, device)
        batcher.withdraw([first], "client")
        other = item(2)
        batcher.submit([other])
        device.free.set()
        assert await values([other]) == [4]

    # It was in no queue any more.
    assert run(test).dropped.value("client") == 0


def test_who_is_late_is_refused_and_not_decoded():
    async def test(batcher, device):
        await hold(batcher, device)
        late, other = item("late", seconds=0.0), item("other")
        batcher.submit([late, other])
        device.free.set()
        assert await values([other]) == ["otherother"]
        with pytest.raises(RequestRefused, match="took too long") as refused:
            await late.future
        assert refused.value.status == 503
        assert device.batches[1:] == [("k", ["other"])]

    assert run(test).dropped.value("deadline") == 1


def test_an_item_that_cannot_be_decoded_fails_alone():
    async def test(batcher, device):
        await hold(batcher, device)
        items = [item("a"), item("broken"), item("b")]
        batcher.submit(items)
        device.free.set()
        assert await values([items[0], items[2]]) == ["aa", "bb"]
        with pytest.raises(ValueError, match="broken"):
            await items[1].future

    run(test)


def test_closing_answers_what_waits_and_takes_nothing_more():
    async def test(batcher, device):
        await hold(batcher, device)
        items = [item(number) for number in range(6)]
        batcher.submit(items)
        closing = asyncio.ensure_future(batcher.close())
        await asyncio.sleep(0)
        with pytest.raises(RequestRefused, match="stopping") as refused:
            batcher.submit([item(9)])
        assert refused.value.status == 503
        device.free.set()
        await closing
        assert await values(items) == [0, 2, 4, 6, 8, 10]

    run(test, max_wait=3600.0)


def test_work_in_the_background_waits_for_items_and_may_fail(caplog):
    async def test(batcher, device):
        order = []
        await hold(batcher, device)

        def fail():
            order.append(len(device.batches))
            raise ValueError("no memory")

        batcher.in_background(fail)
        batcher.in_background(lambda: order.append(len(device.batches)))
        one = item(1)
        batcher.submit([one])
        device.free.set()
        assert await values([one]) == [2]
        while len(order) < 2:
            await asyncio.sleep(0.001)
        assert order == [2, 2]

    run(test)
    assert "no memory" in caplog.text


def test_the_end_does_not_wait_once_the_last_item_is_withdrawn():
    free = threading.Event()

    async def test(batcher, device):
        begun = threading.Event()
        batcher.in_background(lambda: begun.set() or free.wait(30))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        first = item(1)
        batcher.submit([first])
        closing = asyncio.ensure_future(batcher.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        batcher.withdraw([first], "client")
        await closing
        assert batcher.left_work_behind and not device.batches
        free.set()

    run(test)


@pytest.mark.parametrize("waiting", [False, True])
def test_the_end_waits_for_work_in_the_background_only_if_an_item_does(waiting):
    begun, free, left = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        assert free.wait(30)
        left.append("done")

    async def test(batcher, device):
        batcher.in_background(work)
        batcher.in_background(lambda: left.append("begun after the end"))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        items = [item(1)] if waiting else []
        batcher.submit(items)
        closing = asyncio.ensure_future(batcher.close())
        if waiting:
            await asyncio.sleep(0.05)
            assert not closing.done()
            free.set()
        await closing
        assert batcher.left_work_behind == (not waiting)
        assert await values(items) == [2] * len(items)
        assert left == ["done"] * len(items)
        free.set()

    run(test)
