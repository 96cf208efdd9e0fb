"""Size budgets: a file has at most 400 lines, a function at most 60. Raising one takes a commit of its own."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60
ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "tests", "examples", "benchmarks", "docs", "conformance")


def faults(file: Path) -> Iterator[str]:
    """What in this file is over budget."""
    text = file.read_text("utf-8")
    lines = len(text.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{file.relative_to(ROOT)}: {lines} lines, at most {MAX_FILE_LINES}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                where = f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
                yield f"{where}: {length} lines, at most {MAX_FUNCTION_LINES}"


def main() -> int:
    """Print every fault; the exit status says whether there was one."""
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    found = [fault for file in files for fault in faults(file)]
    print("\n".join(found) if found else f"budgets kept in {len(files)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
