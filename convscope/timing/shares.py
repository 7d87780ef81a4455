"""Shares of a pass: the time of its kernels, or on a CPU of its operators, by kind of work and by module.

The operator of PyTorch that launched a kernel says what kind of work it is, better than the kernel's name does. Pure:
this reads events in Chrome's trace format, as `trace.record_layers` returns them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RANGE = "convscope:"
MODULE = RANGE + "module:"

CONVOLUTION, PRODUCT, ATTENTION = "convolution", "matrix product", "attention"
NORMALISATION, POOLING, ELEMENTWISE, COPY, REST = "normalisation", "pooling", "elementwise", "copy", "rest"
CATEGORIES = (CONVOLUTION, PRODUCT, ATTENTION, NORMALISATION, POOLING, ELEMENTWISE, COPY, REST)

_CONVOLVES = re.compile(r"conv(?!ert)")
_ATTENDS = re.compile(r"scaled_dot_product|(flash|efficient|cudnn|multi_head)_attention|transform_bias_rescale_qkv")
_PRODUCTS = r"(_?addmm|mm|bmm|baddbmm|addbmm|linear|matmul|addmv|mv|dot|_addmm_activation|_scaled_mm|_int_mm)_?"
_BATCHED = re.compile(r"::(bmm|baddbmm|_?softmax|_safe_softmax)_?$")  # of an attention that is written out
_PLAIN_PRODUCT = re.compile(r"::(_?addmm|mm|linear|_addmm_activation)_?$")
_ARITHMETIC = (
    r"(relu6?|gelu|silu|mish|elu|celu|selu|leaky_relu|prelu|_prelu_kernel|glu|hard(swish|sigmoid|tanh)|sigmoid|tanh|"
    r"softplus|threshold|clamp(_min|_max)?|add|sub|rsub|mul|div|neg|abs|exp|log|sqrt|rsqrt|pow|square|sin|cos|erf|"
    r"reciprocal|floor|round|lerp|where|maximum|minimum|addcmul|addcdiv|(native_)?dropout|masked_fill|"
    r"eq|ne|gt|lt|ge|le|(logical|bitwise)_\w+)_?"
)
_COPIES = (
    r"(copy|_to_copy|to|contiguous|clone|cat|stack|pad|constant_pad_nd|(reflection|replication)_pad\dd|fill|zero|zeros|"
    r"ones|full|empty\w*|resize|permute|transpose|t|im2col|unfold|roll|flip|repeat\w*|expand\w*|index|index_select|"
    r"gather|slice|select|split\w*|chunk|view|_?reshape\w*|flatten|as_strided|\w*(channel|pixel)_(un)?shuffle)_?"
)
# The innermost operator that one of these matches decides; `_CONVOLVES` and `_ATTENDS` decide for all that they call.
_PATTERNS = (
    (PRODUCT, re.compile(f"::{_PRODUCTS}$")),
    (NORMALISATION, re.compile(r"norm(?!al)")),
    (POOLING, re.compile(r"pool")),
    (ELEMENTWISE, re.compile(f"::{_ARITHMETIC}$")),
    (COPY, re.compile(f"::{_COPIES}$")),
)
_ATTENTION_MODULE = re.compile(r"att(n|ention)", re.IGNORECASE)


@dataclass(frozen=True)
class Work:
    """Time of the kernels of one name (on a CPU of one operator) in one module of a pass: calls and ms a pass.

    `module` is the innermost module by its name, None for the model itself; `kernel` is without template arguments.
    """

    category: str
    kernel: str
    module: str | None
    calls: int
    kernel_ms: float


@dataclass(frozen=True)
class Launch:
    """One kernel: its name, the time of its launch on the host (µs), the host's thread, and its duration."""

    kernel: str
    launched_us: float
    thread: object
    kernel_ms: float


def category(operators: Sequence[str], module: str | None = None) -> str:
    """Return the kind of work of a kernel.

    Args:
        operators: that were open when it was launched, the outermost first: "aten::linear", "aten::addmm".
        module: the innermost module, whose name tells an attention that is written out.
    """
    innermost_first = operators[::-1]
    if any(map(_CONVOLVES.search, operators)):
        return CONVOLUTION
    is_plain = bool(operators) and _PLAIN_PRODUCT.search(operators[-1]) is not None
    if any(map(_ATTENDS.search, operators)):  # a whole attention has the products of its projections inside
        return PRODUCT if is_plain else ATTENTION
    if module and _ATTENTION_MODULE.search(module) and any(map(_BATCHED.search, operators)):
        return ATTENTION
    for operator in innermost_first:
        for kind, pattern in _PATTERNS:
            if pattern.search(operator):
                return kind
    return REST


def short_name(kernel: str) -> str:
    """Return a kernel's name without return type, template arguments and parameters."""
    plain = re.sub(r"^(void|std::enable_if<.*?>::type) ", "", kernel)
    return re.split(r"[<(]", plain, maxsplit=1)[0].split("_tilesize")[0].strip()


def of_launches(events: Sequence[Mapping[str, Any]], launches: Sequence[Launch]) -> list[Work]:
    """Return the work of a pass, the longest first.

    Args:
        events: a trace of the pass, with its operators, and its modules as ranges that begin with `MODULE`.
        launches: every kernel of the pass.
    """
    spans = _spans(events)
    open_then = _open_at(spans, [(launch.thread, launch.launched_us) for launch in launches])
    entries = [
        (*_place(open_spans), short_name(launch.kernel), launch.kernel_ms)
        for launch, open_spans in zip(launches, open_then, strict=True)
    ]
    return _summed(entries)


def of_operators(events: Sequence[Mapping[str, Any]], inside: str) -> list[Work]:
    """Return the work of a pass on a CPU by operator, the longest first: the time of each without those it called.

    Args:
        events: as `of_launches` takes them.
        inside: name of the range around the pass.
    """
    spans = _spans(events)
    passes = [span for span in spans if span.name == inside]
    mine = [span for span in spans if any(each.start_us <= span.start_us <= each.end_us for each in passes)]
    open_then = _open_at(mine, [(span.thread, span.start_us) for span in mine], itself=True)
    own_us = {id(span): span.end_us - span.start_us for span in mine}
    for span, around in zip(mine, open_then, strict=True):
        callers = [outer for outer in around if outer is not span and outer.is_operator]
        if span.is_operator and callers:
            own_us[id(callers[-1])] -= span.end_us - span.start_us
    entries = [
        (*_place(around), span.name, max(0.0, own_us[id(span)]) / 1e3)
        for span, around in zip(mine, open_then, strict=True)
        if span.is_operator
    ]
    return _summed(entries)


@dataclass(frozen=True)
class _Span:
    """An operator, a module or a range on the host."""

    start_us: float
    end_us: float
    name: str
    thread: object
    is_operator: bool


def _spans(events: Iterable[Mapping[str, Any]]) -> list[_Span]:
    """Return operators and ranges, those around others before them."""
    found = [
        _Span(start_us := float(event["ts"]), start_us + float(event["dur"]), event["name"], event.get("tid"), operator)
        for event in events
        if event.get("ph") == "X" and ((operator := event.get("cat") == "cpu_op") or _is_range(event))
    ]
    return sorted(found, key=lambda span: (span.start_us, -span.end_us))


def _is_range(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "user_annotation" and event["name"].startswith(RANGE)


def _open_at(
    spans: Sequence[_Span], moments: Sequence[tuple[object, float]], itself: bool = False
) -> list[list[_Span]]:
    """Return the spans that are open at each moment (thread, µs), the outermost first.

    Args:
        itself: the moments are the starts of the spans, in their order: the last open one is the span itself.
    """
    found: list[list[_Span]] = [[] for _ in moments]
    order = sorted(range(len(moments)), key=lambda index: moments[index][1]) if not itself else range(len(moments))
    stacks: dict[object, list[_Span]] = defaultdict(list)
    taken = 0
    for index in order:
        thread, moment_us = moments[index]
        while taken < len(spans) and (taken <= index if itself else spans[taken].start_us <= moment_us):
            stack = stacks[spans[taken].thread]
            while stack and stack[-1].end_us <= spans[taken].start_us:  # it may begin as the one before it ends
                stack.pop()
            stack.append(spans[taken])
            taken += 1
        while stacks[thread] and stacks[thread][-1].end_us < moment_us:
            stacks[thread].pop()
        found[index] = list(stacks[thread])
    return found


def _place(spans: Sequence[_Span]) -> tuple[str, str | None]:
    """Return the category and the module of what runs inside these spans, the outermost first."""
    modules = [span.name.removeprefix(MODULE) for span in spans if span.name.startswith(MODULE)]
    module = (modules[-1] or None) if modules else None
    return category([span.name for span in spans if span.is_operator], module), module


def _summed(entries: Iterable[tuple[str, str | None, str, float]]) -> list[Work]:
    times_ms: dict[tuple[str, str | None, str], list[float]] = defaultdict(list)
    for kind, module, kernel, time_ms in entries:
        times_ms[kind, module, kernel].append(time_ms)
    work = [Work(kind, kernel, module, len(of), sum(of)) for (kind, module, kernel), of in times_ms.items()]
    return sorted(work, key=lambda each: -each.kernel_ms)


OTHERS = "others"
LEAST_SHARE = 0.001


def folded(work: Sequence[Work], least_share: float = LEAST_SHARE) -> list[Work]:
    """Return the work with what takes less than a share of the pass put together, a row `OTHERS` for each category.

    Most operators of a pass on a CPU only make views: they take no time that could be seen, and hundreds of rows.
    """
    least_ms = least_share * sum(each.kernel_ms for each in work)
    kept = [each for each in work if each.kernel_ms >= least_ms]
    rest = [(each.category, each.calls, each.kernel_ms) for each in work if each.kernel_ms < least_ms]
    for kind in dict.fromkeys(kind for kind, *_ in rest):
        calls, times_ms = zip(*((calls, time_ms) for of, calls, time_ms in rest if of == kind), strict=True)
        kept.append(Work(kind, OTHERS, None, sum(calls), sum(times_ms)))
    return sorted(kept, key=lambda each: -each.kernel_ms)


def shares_pct(kernel_ms: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the share of each category in the sum of these times, the largest first; empty where they are 0."""
    sums: dict[str, float] = defaultdict(float)
    for kind, time_ms in kernel_ms:
        sums[kind] += time_ms
    whole_ms = sum(sums.values())
    ordered = sorted(sums.items(), key=lambda item: -item[1])
    return {kind: 100 * sum_ms / whole_ms for kind, sum_ms in ordered} if whole_ms else {}
