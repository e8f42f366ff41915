"""Judge generated programs: extract the code, run it against its tests, summarise the outcomes."""

from codila.evaluation.execution import ExecutionResult, problem_program, run_programs
from codila.evaluation.extraction import (
    HUMANEVAL_STOPS,
    extract_code,
    has_syntax_error,
    lacks_entry_point,
    sanitize,
    truncate_completion,
)
from codila.evaluation.metrics import (
    AnyOrder,
    Interval,
    McNemar,
    aup,
    mcnemar,
    paired_difference_interval,
    pass_at_k,
    spearman_any_order,
    wilson_interval,
)

__all__ = [
    "HUMANEVAL_STOPS",
    "AnyOrder",
    "ExecutionResult",
    "Interval",
    "McNemar",
    "aup",
    "extract_code",
    "has_syntax_error",
    "lacks_entry_point",
    "mcnemar",
    "paired_difference_interval",
    "pass_at_k",
    "problem_program",
    "run_programs",
    "sanitize",
    "spearman_any_order",
    "truncate_completion",
    "wilson_interval",
]
