"""Puts the texts of many requests into batches, one batch at a time on the device."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from padir.serving.limits import RequestRefused
from padir.serving.metrics import Metrics


@dataclass(frozen=True)
class Answer:
    """What became of one item.

    Attributes:
      value: what the decode returned for it.
      seconds: how long its batch was decoded.
    """

    value: Any
    seconds: float


@dataclass(eq=False)
class Item:
    """Something that waits for the device.

    Attributes:
      kind: items of equal kinds may share a batch: the model and how it decodes.
      width: the padded length of the source. A batch has the width of its oldest item.
      content: what `Batcher.decode` is given.
      request: of the request it belongs to; items of one request never wait for those of others.
      deadline: by `time.monotonic`; past it the item is not decoded any more.
      arrived: by `time.monotonic`, when it was submitted.
      future: gets its `Answer`, from when it was submitted.
    """

    kind: Any
    width: int
    content: Any
    request: object
    deadline: float
    arrived: float = field(init=False)
    future: asyncio.Future = field(init=False)


class Batcher:
    """A queue of items and the one thread that decodes them, batch by batch.

    The oldest item decides the kind and the width of the next batch. Items of that kind and width join it in order of
    arrival; rows that would otherwise be padding take narrower ones. A batch begins at once if the device is free and
    only one request waits. If several wait, it begins when it is full or its oldest item has waited `max_wait` seconds;
    under load that time has passed while the batch before was decoded.

    Attributes:
      left_work_behind: whether it has ended while work in the background went on, in a thread that nothing can stop.
    """

    def __init__(
        self,
        decode: Callable[[Any, list[Any]], Sequence[Any]],
        sizes: Sequence[int],
        *,
        max_wait: float,
        max_queue: int,
        metrics: Metrics,
    ):
        """Starts nothing; see `start`.

        Args:
          decode: (kind, contents) → one value for each content, in order. It is called in the thread.
          sizes: the numbers of rows that programs are compiled for, ascending; the last is the largest batch.
          max_wait: seconds; see above.
          max_queue: the most items that may wait.
          metrics: what batches are counted in.
        """
        self._decode, self._sizes = decode, tuple(sizes)
        self._max_wait, self._max_queue = max_wait, max_queue
        self._metrics = metrics
        self._queue: deque[Item] = deque()
        self._background: deque[Callable[[], None]] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decode")
        self._task: asyncio.Task | None = None
        self._closing = False
        self.left_work_behind = False

    def __len__(self) -> int:
        """The number of items that wait."""
        return len(self._queue)

    @property
    def is_running(self) -> bool:
        """Whether batches are taken."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Starts to take batches; an event loop must be running."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Finishes all items that wait, and ends.

        Work in the background that has not begun is dropped. Work that has begun is not waited for.
        """
        self._closing = True
        self._background.clear()
        self._arrived.set()
        if self._task is not None:
            await self._task
        self._thread.shutdown(wait=not self.left_work_behind)

    def in_background(self, call: Callable[[], None]) -> None:
        """Calls a function in the thread when no item waits; what it raises is logged."""
        self._background.append(call)
        self._arrived.set()

    def submit(self, items: Sequence[Item]) -> None:
        """Adds items, all or none, and gives each its `future`.

        Raises:
          RequestRefused: 429 if they do not fit into the queue, 503 if the server is stopping.
        """
        self.check_room(len(items))
        now, loop = time.monotonic(), asyncio.get_running_loop()
        for item in items:
            item.arrived, item.future = now, loop.create_future()
        self._queue.extend(items)
        self._arrived.set()

    def check_room(self, count: int) -> None:
        """Raises what `submit` raises if so many items would not be taken now."""
        if self._closing:
            raise RequestRefused(503, "the server is stopping")
        if not self.is_running:
            raise RequestRefused(503, "no batches are taken any more; restart the server")
        if len(self._queue) + count > self._max_queue:
            raise RequestRefused(429, f"the queue of {self._max_queue} texts is full; try again later")

    def withdraw(self, items: Sequence[Item], reason: str) -> None:
        """Takes items that nobody wants any more out of the queue; those in a batch are decoded in vain.

        Args:
          items: the items.
          reason: what the metrics call it.
        """
        for item in items:
            item.future.cancel()
        unwanted = set(map(id, items))
        waiting = [item for item in self._queue if id(item) not in unwanted]
        if len(waiting) < len(self._queue):
            self._metrics.dropped.add(reason, by=len(self._queue) - len(waiting))
            self._queue = deque(waiting)
            # Nothing may be left to do before the end.
            self._arrived.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._arrived.clear()
            if self._queue:
                await self._linger()
                if batch := self._take():
                    await loop.run_in_executor(self._thread, self._answer, batch, loop)
            elif self._background:
                await self._work_in_background(loop.run_in_executor(self._thread, _logged, self._background.popleft()))
            elif self._closing:
                return
            else:
                await self._arrived.wait()

    async def _work_in_background(self, work: asyncio.Future) -> None:
        """Waits until it is done, or until there is nothing else to do before the end: compiling may take minutes."""
        while not (work.done() or self._closing and not self._queue):
            self._arrived.clear()
            arrived = asyncio.ensure_future(self._arrived.wait())
            await asyncio.wait({work, arrived}, return_when=asyncio.FIRST_COMPLETED)
            arrived.cancel()
        self.left_work_behind = not work.done()

    async def _linger(self) -> None:
        """Waits for more items where several requests wait already, at most until the oldest has waited `max_wait`."""
        while self._queue and not self._closing:
            first = self._queue[0]
            left = first.arrived + self._max_wait - time.monotonic()
            alone = all(item.request is first.request for item in self._queue)
            if left <= 0 or alone or sum(_fits(item, first) for item in self._queue) >= self._sizes[-1]:
                return
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), left)
            except TimeoutError:
                return

    def _take(self) -> list[Item]:
        """Takes the next batch from the queue; an item whose deadline has passed is refused instead."""
        now = time.monotonic()
        late = [item for item in self._queue if item.deadline <= now]
        for item in late:
            _fail(item.future, RequestRefused(503, "took too long: the time limit passed while it waited"))
        if late:
            self._metrics.dropped.add("deadline", by=len(late))
            self._queue = deque(item for item in self._queue if item.deadline > now)
        if not self._queue:
            return []
        first = self._queue[0]
        batch = [item for item in self._queue if _fits(item, first)][: self._sizes[-1]]
        free = next(size for size in self._sizes if size >= len(batch)) - len(batch)
        batch += [item for item in self._queue if item.kind == first.kind and item.width < first.width][:free]
        taken = set(map(id, batch))
        self._queue = deque(item for item in self._queue if id(item) not in taken)
        self._metrics.batch_size.observe(len(batch))
        for item in batch:
            self._metrics.queue_seconds.observe(now - item.arrived)
        return batch

    def _answer(self, batch: list[Item], loop: asyncio.AbstractEventLoop) -> None:
        """Decodes a batch, in the thread. If that fails, each item is tried alone, so that one cannot fail others."""
        began = time.perf_counter()
        try:
            values = self._decode(batch[0].kind, [item.content for item in batch])
        except Exception as error:
            if len(batch) > 1:
                for item in batch:
                    self._answer([item], loop)
                return
            loop.call_soon_threadsafe(_fail, batch[0].future, error)
            return
        seconds = time.perf_counter() - began
        self._metrics.decode_seconds.observe(seconds)
        for item, value in zip(batch, values, strict=True):
            loop.call_soon_threadsafe(_finish, item.future, Answer(value, seconds))


def _logged(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        logging.getLogger("uvicorn.error").exception("work in the background failed")


def _fits(item: Item, first: Item) -> bool:
    return item.width == first.width and item.kind == first.kind


def _finish(future: asyncio.Future, answer: Answer) -> None:
    # Cancelled if the client has left.
    if not future.done():
        future.set_result(answer)


def _fail(future: asyncio.Future, error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
