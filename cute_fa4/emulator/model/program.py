"""SASS text -> instructions, basic blocks and natural loops.

Loops are found in the control-flow graph, not by address, because ptxas moves the retry of a barrier wait to after
the kernel's end, from where it branches back:

        .L_loop:  SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [bar] ;     first try
             @!P0 BRA .L_retry ;                                 not yet: out of line
        .L_back:  ... work ...
                  BRA .L_loop ;                                  the loop's back edge
        ...
        .L_retry: SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [bar] ;
             @!P0 BRA .L_retry ;
                  BRA .L_back ;        jumps upward, but .L_back does not dominate it: no loop

A branch closes a loop when its target dominates it (every way to the branch leads through the
target); the loop is what can reach the branch without the target. Aho, Lam, Sethi, Ullman:
Compilers, 2nd edition, 9.6.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

_LABEL = re.compile(r"^(\.L_\w+):")
_SECTION = re.compile(r"^\s*\.section\s+(\.text\.[^,\s]+)")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_LABEL_IN_OPERANDS = re.compile(r"\.L_\w+")
_CONVERGENCE_REGISTER = re.compile(r"\bB\d+\b")


@dataclass(frozen=True)
class Instruction:
    """One SASS instruction; guard is None or e.g. "!P0"; opcode with its suffixes."""

    address: int
    guard: str | None
    opcode: str
    operands: str

    @property
    def name(self) -> str:
        """The opcode without suffixes: MUFU of MUFU.EX2."""
        return self.opcode.split(".", 1)[0]


@dataclass(frozen=True)
class Block:
    """Straight-line code: entered at its first, left after its last instruction."""

    index: int
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class Loop:
    """A natural loop: header and blocks by index; latches are the blocks that jump to the header.

    retries: this loop only asks a barrier again and again.
    """

    header: int
    blocks: frozenset[int]
    latches: frozenset[int]
    retries: bool


@dataclass
class Function:
    """One .text section as a control-flow graph; block 0 is the entry."""

    name: str
    blocks: list[Block]
    successors: list[list[int]]
    _predecessors: list[list[int]] = field(init=False)

    def __post_init__(self):
        self._predecessors = [[] for _ in self.blocks]
        for block, followers in enumerate(self.successors):
            for follower in followers:
                self._predecessors[follower].append(block)

    @property
    def instructions(self) -> Iterator[Instruction]:
        return (ins for block in self.blocks for ins in block.instructions)

    def instructions_of(self, loop: Loop) -> Iterator[Instruction]:
        return (ins for b in sorted(loop.blocks) for ins in self.blocks[b].instructions)

    @cached_property
    def _order(self) -> list[int]:
        """Reachable blocks in reverse postorder: a block after everything that dominates it."""
        seen, order = {0}, []
        stack = [(0, iter(self.successors[0]))]
        while stack:
            block, followers = stack[-1]
            follower = next((f for f in followers if f not in seen), None)
            if follower is None:
                order.append(block)
                stack.pop()
            else:
                seen.add(follower)
                stack.append((follower, iter(self.successors[follower])))
        return order[::-1]

    @cached_property
    def _dominators(self) -> dict[int, set[int]]:
        """For every reachable block the blocks on every way to it, itself included."""
        everything = set(self._order)
        dominators = {block: everything for block in self._order}
        dominators[0] = {0}
        changed = True
        while changed:
            changed = False
            for block in self._order[1:]:
                before = [dominators[p] for p in self._predecessors[block] if p in dominators]
                new = set.intersection(*before) | {block}
                if new != dominators[block]:
                    dominators[block], changed = new, True
        return dominators

    @cached_property
    def loops(self) -> list[Loop]:
        """Every natural loop, one a header, in the order of the code."""
        latches: dict[int, set[int]] = {}
        for block in self._order:
            for follower in self.successors[block]:
                if follower in self._dominators[block]:
                    latches.setdefault(follower, set()).add(block)
        loops = []
        for header, tails in sorted(latches.items()):
            body, todo = {header}, list(tails)
            while todo:
                block = todo.pop()
                if block not in body:
                    body.add(block)
                    todo += [p for p in self._predecessors[block] if p in self._dominators]
            code = [ins for b in body for ins in self.blocks[b].instructions]
            loops.append(Loop(header, frozenset(body), frozenset(tails), _only_waits(code)))
        return loops

    def innermost(self) -> list[Loop]:
        """Loops that contain no other loop than barrier retries, and are none."""
        working = [loop for loop in self.loops if not loop.retries]
        return [a for a in working if not any(b.blocks < a.blocks for b in working)]

    def longest_pass(self, loop: Loop) -> list[Instruction]:
        """The instructions of one pass through the loop when no barrier has to be asked twice.

        Where the code branches, the longer way counts. A retry that a pass can avoid is left out;
        one that lies in the way (the first try is inside it) counts once.
        """
        kept = set(loop.blocks)
        for other in self.loops:
            without = kept - other.blocks
            if other.retries and other.blocks < loop.blocks and self._closes(loop, without):
                kept = without
        length: dict[int, int] = {}
        came_from: dict[int, int | None] = {}
        for block in (b for b in self._order if b in kept):
            before = [
                p
                for p in self._predecessors[block]
                if p in length and block not in self._dominators[p]
            ]
            if block != loop.header and not before:
                continue
            best = max(before, key=length.__getitem__) if block != loop.header else None
            length[block] = len(self.blocks[block].instructions)
            if best is not None:
                length[block] += length[best]
            came_from[block] = best
        at: int | None = max((b for b in loop.latches if b in length), key=length.__getitem__)
        path = []
        while at is not None:
            path.append(at)
            at = came_from[at]
        return [ins for b in reversed(path) for ins in self.blocks[b].instructions]

    def _closes(self, loop: Loop, allowed: set[int]) -> bool:
        """Whether a pass from header to a latch exists within the allowed blocks."""
        if loop.header not in allowed:
            return False
        seen, todo = {loop.header}, [loop.header]
        while todo:
            block = todo.pop()
            if block in loop.latches:
                return True
            new = [f for f in self.successors[block] if f in allowed and f not in seen]
            seen.update(new)
            todo += new
        return False


# Instructions that a retry loop may contain in addition to its PHASECHK: sleeps, address moves, jumps.
_RETRY_NAMES = {"SYNCS", "NANOSLEEP", "BRA", "MOV", "UMOV", "IMAD", "NOP", "PLOP3", "UPLOP3"}
_RETRY_NAMES |= {"R2UR", "WARPSYNC", "YIELD", "SEL", "ISETP"}


def _only_waits(code: list[Instruction]) -> bool:
    names = {ins.name for ins in code}
    return any("PHASECHK" in ins.opcode for ins in code) and names <= _RETRY_NAMES


def parse(text: str) -> list[Function]:
    """Every function of an nvdisasm -c listing; text without a .section line is one function."""
    functions = []
    name = ""
    lines: list[str] = []
    for line in text.splitlines():
        section = _SECTION.match(line)
        if section:
            functions.append((name, lines))
            name, lines = section[1].removeprefix(".text."), []
        lines.append(line)
    functions.append((name, lines))
    parsed = [_parse_function(name, lines) for name, lines in functions]
    return [function for function in parsed if function]


def _parse_function(name: str, lines: list[str]) -> Function | None:
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in lines:
        label = _LABEL.match(line)
        if label:
            labels[label[1]] = len(instructions)
            continue
        found = _INSTRUCTION.match(line)
        if found:
            address, guard, opcode, operands = found.groups()
            instructions.append(Instruction(int(address, 16), guard, opcode, operands))
    if not instructions:
        return None

    leaders = {0, *(at for at in labels.values() if at < len(instructions))}
    leaders |= {i + 1 for i, ins in enumerate(instructions) if _leaves(ins)}
    starts = sorted(at for at in leaders if at < len(instructions))
    ends = [*starts[1:], len(instructions)]
    block_at = {start: index for index, start in enumerate(starts)}
    blocks = [
        Block(i, tuple(instructions[start:end]))
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    successors = []
    for index, (block, end) in enumerate(zip(blocks, ends, strict=True)):
        last = block.instructions[-1]
        targets, falls_through = _targets(last, end - 1, instructions)
        following = [block_at[labels[t]] for t in targets if labels.get(t, -1) in block_at]
        if falls_through and index + 1 < len(blocks):
            following.append(index + 1)
        successors.append(list(dict.fromkeys(following)))
    return Function(name, blocks, successors)


_ENDS = {"EXIT", "RET", "KILL", "BPT"}
_JUMPS = {"BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU"}


def _leaves(ins: Instruction) -> bool:
    return ins.name in _ENDS or ins.name in _JUMPS or ins.name == "BSYNC"


def _targets(last: Instruction, at: int, code: list[Instruction]) -> tuple[list[str], bool]:
    """Labels a block's last instruction may jump to, and whether the next block may follow.

    Calls return, so they are no jumps. BSYNC continues at the label of the BSSY that it closes,
    the nearest one before it with the same convergence register.
    """
    if last.name in _ENDS:
        return [], last.guard is not None and last.name != "BPT"
    if last.name in _JUMPS:
        # BRA.U UP0, `(.L) has its condition among the operands, a plain BRA only a label; BRA.DIV UR4, `(.L) is
        # taken by a warp that has diverged.
        conditional = last.guard is not None or bool(
            re.match(r"!?U?P[\dT]", last.operands) or ".DIV" in last.opcode
        )
        return _LABEL_IN_OPERANDS.findall(last.operands), conditional
    if last.name == "BSYNC":
        register = _CONVERGENCE_REGISTER.search(last.operands)
        for opener in reversed(code[:at]):
            if opener.name == "BSSY" and register and register[0] in opener.operands:
                return _LABEL_IN_OPERANDS.findall(opener.operands), last.guard is not None
    return [], True
