"""Reading a compiled program's text: estimated cycles, loops, collectives, and which source lines they come from.

XLA's TPU compiler writes `estimated_cycles` beside nearly every instruction of a scheduled program. A loop's body is
counted as often as it runs. The estimate does not know contention, prices random numbers low, and says nothing of
collectives and custom calls. XLA's GPU compiler writes no cycles: all are 0.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_OPCODE = re.compile(r" ([a-z][a-z0-9\-]*)\(")
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_COLLECTIVE = re.compile(rf"^\s*(?:ROOT )?%?[\w.\-]+ = (.*?) ({'|'.join(_COLLECTIVES)})(-start)?\(")
_SHAPE = re.compile(r"\b(pred|[sub]?f?\d+\w*|bf16)\[([\d,]*)\]")
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8}
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
# Without `is_host_transfer`, a device sends to another. Custom calls are JAX's callbacks on GPUs.
_HOST = re.compile(r" (?:infeed|outfeed)\(| (?:send|recv)\(.*is_host_transfer=true|custom_call_target=\"\w+_callback\"")


@dataclass(frozen=True)
class Loop:
    """A loop of the program.

    Attributes:
      cycles: estimated cycles of one trip.
      trips: how often it runs.
      known: whether the compiler knows that; otherwise it is what the caller said.
    """

    cycles: int
    trips: int
    known: bool


@dataclass(frozen=True)
class Collective:
    """All collectives of one kind.

    Attributes:
      kind: such as 'all-reduce'.
      between_slices: whether they cross the network between slices.
      count: how many there are in an execution.
      bytes: of their results on one device, in an execution.
    """

    kind: str
    between_slices: bool
    count: int
    bytes: int


@dataclass
class Analysis:
    """What the text of a program says.

    Attributes:
      cycles: estimated cycles of an execution, without collectives.
      once: of these, the cycles outside loops.
      loops: the loops of the entry computation, in the order of the text.
      by_source: estimated cycles by source line, 'padir/nn/attention.py:185'.
      by_module: by source file.
      opcodes: how many instructions there are of each kind, fused ones not counted.
      collectives: by kind and network.
      host_transfers: instructions that exchange data with the host, collectives between slices not counted.
      lines: of the text.
    """

    cycles: int = 0
    once: int = 0
    loops: list[Loop] = field(default_factory=list)
    by_source: collections.Counter = field(default_factory=collections.Counter)
    by_module: collections.Counter = field(default_factory=collections.Counter)
    opcodes: collections.Counter = field(default_factory=collections.Counter)
    collectives: list[Collective] = field(default_factory=list)
    host_transfers: int = 0
    lines: int = 0


def analyse(
    text: str,
    trips: int = 1,
    *,
    branch: tuple[int, int] | None = None,
) -> Analysis:
    """Reads a compiled program.

    Args:
      text: `compiled.as_text()`.
      trips: how often a loop runs of which the compiler does not know it.
      branch: (of, index): in conditionals with `of` branches, the one with this index runs. In others the dearest does;
        of equally dear ones, as all are on GPUs, the one with most instructions.
    """
    program = _Program(text, trips, branch)
    found = Analysis(lines=text.count("\n"))
    collectives: dict[tuple[str, bool], list[int]] = collections.defaultdict(lambda: [0, 0])
    for line, times in program.executed():
        found.opcodes.update(_OPCODE.findall(line)[:1])
        if cycles := program.cycles_of(line):
            source = program.source_of(line)
            found.by_source[source] += times * cycles
            found.by_module[source.partition(":")[0]] += times * cycles
        if match := _COLLECTIVE.match(line):
            entry = collectives[match.group(2), False]
            entry[0] += times
            entry[1] += times * sum(_sizes(_result(match)))
        if match := _BETWEEN_SLICES.search(line):
            # Slices exchange data through their hosts: every collective between them sends and receives.
            if " send(" in line:
                entry = collectives[match.group(1).lower().replace("_", "-"), True]
                entry[0] += times
                entry[1] += times * max(_sizes(line.partition(" = ")[2].partition(" send(")[0]))
        elif _HOST.search(line):
            found.host_transfers += 1
    found.collectives = [Collective(*key, *entry) for key, entry in sorted(collectives.items())]
    found.cycles = program.total(program.entry)
    found.loops = program.loops_of(program.entry)
    found.once = found.cycles - sum(loop.cycles * loop.trips for loop in found.loops)
    return found


class _Program:
    """The computations of a program's text, and what they call."""

    def __init__(self, text: str, trips: int, branch: tuple[int, int] | None):
        self.trips, self.branch = trips, branch
        self.computations: dict[str, list[str]] = {}
        self.entry = ""
        self.tables: dict[str, dict[str, str]] = {}
        self._totals: dict[str, int] = {}
        name = table = None
        for line in text.splitlines():
            if line in _TABLES:
                table = self.tables.setdefault(line, {})
            elif table is not None and (row := re.match(r"^(\d+) (.*)$", line)):
                table[row.group(1)] = row.group(2)
            elif head := _HEAD.match(line):
                table, name = None, head.group(2)
                self.computations[name] = []
                self.entry = name if head.group(1) else self.entry
            elif line == "}":
                name = None
            elif name is not None:
                self.computations[name].append(line)

    def calls(self, line: str) -> list[tuple[str, int, bool]]:
        """What an instruction runs apart from itself: (computation, how often, whether the compiler knows that)."""
        if " while(" in line:
            known = self._known_trips(line)
            trips = self.trips if known is None else known
            return [(name, trips, known is not None) for name in re.findall(r"(?:body|condition)=%?([\w.\-]+)", line)]
        if " conditional(" in line:
            names = re.findall(r"(?:true_computation|false_computation)=%?([\w.\-]+)", line)
            many = re.search(r"branch_computations=\{([^}]*)\}", line)
            names += [name.strip().lstrip("%") for name in many.group(1).split(",")] if many else []
            if self.branch is not None and len(names) == self.branch[0]:
                return [(names[self.branch[1]], 1, True)]
            return [(max(names, key=lambda name: (self.total(name), len(self.computations.get(name, ())))), 1, True)]
        if re.search(r" (?:call|async-start)\(", line):
            return [(name, 1, True) for name in re.findall(r"(?:to_apply|calls)=%?([\w.\-]+)", line)]
        return []

    def _known_trips(self, line: str) -> int | None:
        """How often a loop runs, if its condition only counts to a number, as that of `jax.lax.scan` does."""
        if known := re.search(r'known_trip_count":\{"n":"(\d+)"', line):
            return int(known.group(1))
        condition = re.search(r"condition=%?([\w.\-]+)", line)
        lines = self.computations.get(condition.group(1), ()) if condition else ()
        root = next((each for each in lines if each.lstrip().startswith("ROOT ")), "")
        counts = re.search(r" compare\(%?([\w.\-]+), %?([\w.\-]+)\), direction=LT", root)
        if counts:
            for each in lines:
                if found := re.match(rf"\s*%?{re.escape(counts.group(2))} = s32\[\]\S* constant\((\d+)\)", each):
                    return int(found.group(1))
        return None

    def cycles_of(self, line: str) -> int:
        """The estimate beside an instruction itself."""
        found = _CYCLES.search(line)
        return int(found.group(1)) if found else 0

    def total(self, name: str) -> int:
        """Estimated cycles of a computation with all it calls."""
        if name not in self._totals:
            lines = self.computations.get(name, ())
            own = sum(map(self.cycles_of, lines))
            called = sum(times * self.total(callee) for line in lines for callee, times, _ in self.calls(line))
            self._totals[name] = own + called
        return self._totals[name]

    def loops_of(self, name: str) -> list[Loop]:
        """The loops of a computation, those of the branches and functions it calls included."""
        loops = []
        for line in self.computations.get(name, ()):
            called = self.calls(line)
            if " while(" in line:
                _, trips, known = called[0]
                loops.append(Loop(sum(self.total(callee) for callee, _, _ in called), trips, known))
            else:
                loops += [loop for callee, _, _ in called for loop in self.loops_of(callee)]
        return loops

    def executed(self) -> Iterator[tuple[str, int]]:
        """Every instruction that an execution runs, and how often."""

        def walk(name: str, times: int) -> Iterator[tuple[str, int]]:
            for line in self.computations.get(name, ()):
                if " = " in line:
                    yield line, times
                for callee, often, _ in self.calls(line):
                    yield from walk(callee, times * often)

        return walk(self.entry, 1)

    def source_of(self, line: str) -> str:
        """The innermost source line of an instruction outside installed packages, as 'folder/file.py:line'."""
        frame = re.search(r"stack_frame_id=(\d+)", line)
        number = frame.group(1) if frame else ""
        while found := self.tables.get("StackFrames", {}).get(number):
            location = self.tables["FileLocations"][_number("file_location_id", found)]
            file = self.tables["FileNames"][_number("file_name_id", location)].strip('"')
            if "site-packages" not in file and "/padir/" in file:
                return f"padir/{file.rpartition('/padir/')[2]}:{_number('line', location)}"
            parent = _number("parent_frame_id", found)
            # The text numbers parents from 1; 0 and 1 stand for none.
            number = str(int(parent) - 1) if parent else ""
        return "other"


def _number(name: str, text: str) -> str:
    found = re.search(rf"\b{name}=(\d+)", text)
    return found.group(1) if found else ""


def _result(collective: re.Match) -> str:
    """The shapes of a collective's result. One that starts asynchronously returns (operands, results, …) instead.

    An all-reduce does not: its results have the shapes of its operands.
    """
    shapes, kind, started = collective.groups()
    if not started or kind == "all-reduce" or not shapes.startswith("("):
        return shapes
    depth, parts = 0, [""]
    for character in shapes[1:-1]:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts[1]


def _sizes(shapes: str) -> list[int]:
    """Bytes of each array in a text of shapes."""
    return [
        _BYTES.get(dtype, 4) * math.prod(int(size) for size in dims.split(",") if size)
        for dtype, dims in _SHAPE.findall(shapes)
    ]
